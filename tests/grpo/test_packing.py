"""Packing loses nothing, keeps to the budget and spreads evenly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit import ConfigurationError
from sandboxkit.integrations.grpo.packing import pack, spread

lengths = st.lists(st.integers(1, 50), max_size=60)


@given(lengths, st.integers(1, 8))
def test_every_sequence_goes_to_exactly_one_rank(lengths: list[int], ranks: int) -> None:
    chosen = spread(lengths, ranks)
    assert len(chosen) == ranks
    assert sorted(index for rank in chosen for index in rank) == list(range(len(lengths)))


@given(lengths, st.integers(1, 8))
def test_no_rank_has_more_than_another_by_more_than_one_sequence(
    lengths: list[int], ranks: int
) -> None:
    loads = [sum(lengths[index] for index in rank) for rank in spread(lengths, ranks)]
    assert max(loads) - min(loads) <= max(lengths, default=0)


@given(lengths, st.integers(50, 100))
def test_rows_keep_to_the_budget_and_lose_nothing(lengths: list[int], budget: int) -> None:
    rows = pack(lengths, budget, range(len(lengths)))
    assert all(sum(lengths[index] for index in row) <= budget for row in rows)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    half_empty = [row for row in rows if 2 * sum(lengths[index] for index in row) <= budget]
    assert len(half_empty) <= 1, "two of those would have fitted into one"


def test_a_sequence_over_the_budget_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a sequence of 11 tokens does not fit"):
        pack([5, 11], 10, [0, 1])


def test_no_ranks_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="ranks=0"):
        spread([1], 0)
