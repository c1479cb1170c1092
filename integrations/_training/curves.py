"""Values for a step's log: means over the cases of its rewards, and pass@k."""

import math
from collections.abc import Iterable, Sequence

from sandboxkit.integrations.rewards import Outcome, Part, Verdict


def part_curves(verdicts: Iterable[Verdict]) -> dict[str, float]:
    """Return means over the verdicts that have parts and are no infrastructure failures; {} without any.

    `parts/score` is a verdict's score, weighted over its cases; `parts/OUTCOME` the share of its cases
    with that outcome; and `parts/processor_seconds` the CPU time of one case in seconds, if measured.
    """
    graded = [each.parts for each in verdicts if each.parts and each.attributable_to == "policy"]
    if not graded:
        return {}
    curves = {"parts/score": _mean([_points(parts) for parts in graded])}
    for outcome in Outcome:
        shares = [sum(part.outcome is outcome for part in parts) / len(parts) for parts in graded]
        if any(shares):
            curves[f"parts/{outcome}"] = _mean(shares)
    measured = [part.processor_seconds for parts in graded for part in parts]
    known = [seconds for seconds in measured if seconds is not None]
    if known:
        curves["parts/processor_seconds"] = _mean(known)
    return curves


def pass_at_k(groups: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Return pass@k for k = 1, 2, 4, ...: the chance that one of k samples of a task passes.

    Each group has the samples of one task. The unbiased estimate is 1 - C(n - c, k) / C(n, k) for c
    passes among n samples (Chen et al. 2021, arXiv:2107.03374), a mean over the groups with n >= k.
    """
    largest = max(map(len, groups), default=0)
    return {
        f"pass@{k}": _mean(
            [
                1 - math.comb(len(group) - sum(group), k) / math.comb(len(group), k)
                for group in groups
                if len(group) >= k
            ]
        )
        for k in (1 << power for power in range(largest.bit_length()))
    }


def _points(parts: Sequence[Part]) -> float:
    weight = sum(part.weight for part in parts)
    return sum(part.score * part.weight for part in parts) / weight if weight else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
