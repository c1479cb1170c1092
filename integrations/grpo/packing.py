"""Packing of completions of unequal lengths into rows of a token budget, balanced over ranks.

A packed row is a concatenation of sequences, with position ids that restart at 0 for each and no
attention mask. The model's attention separates the sequences by their position ids; attention.py
computes each sequence's attention separately.
"""

import heapq
from collections.abc import Sequence

__all__ = ["alike", "pack", "spread"]


def alike(
    prompts: Sequence[tuple[int, ...]], lengths: Sequence[int], budget: int
) -> tuple[list[list[int]], list[int]]:
    """Group sequences with the same prompt; return the indices of each group and its cost in tokens.

    The cost counts the shared prompt once. A group costs at most `budget`, unless it is a single
    longer sequence.
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
    """Distribute sequences greedily over ranks by cost; return the indices for each rank.

    Assigns the longest first, each to the rank with the lowest load (Graham's LPT rule: the maximum
    load is at most 4/3 of the optimum). A sequence costs its length; ties go to the lower rank.
    """
    loads = [(0, rank) for rank in range(ranks)]
    chosen: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        load, rank = heapq.heappop(loads)
        chosen[rank].append(index)
        heapq.heappush(loads, (load + lengths[index], rank))
    return chosen


def pack(lengths: Sequence[int], budget: int, indices: Sequence[int]) -> list[list[int]]:
    """Put the sequences named by `indices` into rows of at most `budget` tokens.

    Uses first fit, longest first, which needs at most 11/9 of the minimum number of rows plus one. No
    sequence may be longer than the budget, which `Config` ensures.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(indices, key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        for row, left in enumerate(room):
            if length <= left:
                rows[row].append(index)
                room[row] -= length
                break
        else:
            rows.append([index])
            room.append(budget - length)
    return rows
