"""Packing: completions of unequal lengths into rows of a token budget, evenly over ranks.

A packed row is several sequences one after the other, with position ids that start again at 0 for
each and no attention mask: the model's attention keeps them apart by their positions, and attention.py
by computing nothing else.
"""

import heapq
from collections.abc import Sequence

from sandboxkit.errors import ConfigurationError

__all__ = ["alike", "pack", "spread"]


def alike(
    prompts: Sequence[tuple[int, ...]], lengths: Sequence[int], budget: int
) -> tuple[list[list[int]], list[int]]:
    """Indices of sequences that have one prompt, and what they cost when that is there once.

    As many together as cost at most `budget`, or one that costs more alone.
    """
    units: list[list[int]] = []
    costs: list[int] = []
    last: dict[tuple[int, ...], int] = {}
    for index, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        unit, own = last.get(prompt), length - len(prompt)
        if unit is not None and costs[unit] + own <= budget:
            units[unit].append(index)
            costs[unit] += own
        else:
            last[prompt] = len(units)
            units.append([index])
            costs.append(length)
    return units, costs


def spread(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices for each rank, so that the ranks' costs are as even as a greedy choice makes them.

    Longest first, each to the rank with the least so far (Graham's LPT rule, at most 4/3 of the
    best possible). A sequence costs its length; ties go to the lower rank.
    """
    if ranks < 1:
        raise ConfigurationError(f"ranks={ranks}: give 1 or more")
    loads = [(0, rank) for rank in range(ranks)]
    chosen: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        load, rank = heapq.heappop(loads)
        chosen[rank].append(index)
        heapq.heappush(loads, (load + lengths[index], rank))
    return chosen


def pack(lengths: Sequence[int], budget: int, indices: Sequence[int]) -> list[list[int]]:
    """Put the sequences named by `indices` into rows of at most `budget` tokens.

    First fit, longest first: at most 11/9 of the fewest possible rows and one more. Raises
    ConfigurationError for a sequence longer than the budget.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(indices, key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        if length > budget:
            raise ConfigurationError(
                f"a sequence of {length} tokens does not fit in max_tokens_per_row={budget}: "
                "raise it, or shorten prompts or completions"
            )
        for row, left in enumerate(room):
            if length <= left:
                rows[row].append(index)
                room[row] -= length
                break
        else:
            rows.append([index])
            room.append(budget - length)
    return rows
