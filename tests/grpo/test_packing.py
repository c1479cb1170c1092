"""Packing loses nothing, keeps to the budget and spreads evenly."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import NemotronConfig, NemotronForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from sandboxkit.integrations.grpo import attention
from sandboxkit.integrations.grpo.model import Sequences, load, logp_of
from sandboxkit.integrations.grpo.packing import alike, pack, spread
from tests.grpo import tiny

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


@pytest.mark.parametrize(
    ("sizes", "window", "pairs"),
    [
        pytest.param((20, 5, 2), 0, 20 * 20 + 5 * 5 + 2 * 2, id="one after the other"),
        pytest.param((5, 7, 6), 0, 3 * 7 * 7, id="together"),
        pytest.param((5, 7, 2), 4, 14 * 14, id="as transformers does"),
    ],
)
def test_attention_stays_within_the_sequences_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], window: int, pairs: int
) -> None:
    """Where its layers look at all that came before; gradients are those of one row for each."""
    tiny.save_model(tmp_path)
    shape = json.loads((tmp_path / "config.json").read_text())
    if window:
        shape |= {"use_sliding_window": True, "sliding_window": window}
        shape["layer_types"] = ["sliding_attention"] * 2
    (tmp_path / "config.json").write_text(json.dumps(shape))
    model = load(str(tmp_path))
    asked: list[int] = []

    def counted(module: Any, query: torch.Tensor, *more: Any, **options: Any) -> Any:
        asked.append(query.shape[0] * query.shape[2] ** 2)
        return sdpa_attention_forward(module, query, *more, **options)

    monkeypatch.setattr(attention, "sdpa_attention_forward", counted)
    numbers = random.Random(0)
    ids = [[numbers.randrange(2, tiny.VOCABULARY) for _ in range(size)] for size in sizes]

    def gradients(rows: list[list[list[int]]]) -> torch.Tensor:
        model.zero_grad()
        asked.clear()
        for row in rows:
            logp_of(model, Sequences(row, [1] * len(row)))[0].sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    apart = gradients([[each] for each in ids])
    together = gradients([ids])
    assert sum(asked) == 2 * pairs, "of two layers"
    assert torch.allclose(together, apart, atol=1e-5)
    assert float(apart.abs().max()) > 0.1


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 20)), max_size=40))
def test_sequences_of_one_prompt_are_together_within_the_budget(
    sizes: list[tuple[int, int]],
) -> None:
    prompts = [(7,) * prompt for prompt, _ in sizes]
    units, costs = alike(prompts, [sum(size) for size in sizes], 30)
    assert sorted(index for unit in units for index in unit) == list(range(len(sizes)))
    for unit, cost in zip(units, costs, strict=True):
        (prompt,) = {sizes[index][0] for index in unit}
        assert cost == prompt + sum(sizes[index][1] for index in unit)
        assert cost <= 30


def test_a_prompt_that_is_computed_once_gives_the_same(tmp_path: Path) -> None:
    """Log-probabilities and gradient, with a prompt of one and completions of one token among them."""
    tiny.save_model(tmp_path)
    model = load(str(tmp_path)).double()
    numbers = random.Random(0)

    def some(count: int) -> list[int]:
        return [numbers.randrange(2, tiny.VOCABULARY) for _ in range(count)]

    groups = [(some(6), (4, 1, 7)), (some(3), (5,)), (some(1), (2, 2)), (some(8), (1, 1, 1))]
    ids = [prompt + some(size) for prompt, sizes in groups for size in sizes]
    starts = [len(prompt) for prompt, sizes in groups for _ in sizes]
    rows = [Sequences([each], [start]) for each, start in zip(ids, starts, strict=True)]
    seen: list[int] = []
    hook = model.get_input_embeddings().register_forward_hook(
        lambda _, given, __: seen.append(given[0].numel())
    )

    def computed(rows: list[Sequences]) -> tuple[torch.Tensor, torch.Tensor]:
        model.zero_grad()
        seen.clear()
        logp = torch.cat([logp_of(model, row)[0] for row in rows])
        (logp * torch.linspace(-1, 1, len(logp))).sum().backward()
        found = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return logp.detach(), torch.cat(found)

    alone, separate = computed(rows), sum(seen)
    together, shared = computed([Sequences(ids, starts)]), sum(seen)
    hook.remove()
    assert separate - shared == 2 * 6 + 1 * 1 + 2 * 8
    for ours, plain in zip(together, alone, strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-6, rtol=1e-6)
    assert float(alone[1].abs().max()) > 0.1


def test_a_family_whose_layers_are_not_handed_what_is_shared_shares_nothing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = NemotronConfig(
        vocab_size=tiny.VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
    )
    NemotronForCausalLM(shape).save_pretrained(tmp_path)
    model = load(str(tmp_path))
    ids = [[5, 6, 7, *rest] for rest in ([8], [9, 10, 11], [12, 13])]
    alone = torch.cat([logp_of(model, Sequences([each], [3]))[0] for each in ids])
    together, _ = logp_of(model, Sequences(ids, [3, 3, 3]))
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=0)
    assert not attention.shares(model, 6)
    with torch.device("meta"):
        bare = NemotronForCausalLM._from_config(shape, attn_implementation="sdpa")
    attention.keep_apart(bare)
    assert not attention.shares(bare, 6), "a rank that has no weights yet says the same"
