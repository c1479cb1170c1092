"""The metrics of a step in metrics.jsonl: statistics of its rollouts, and its timing."""

import math
from collections.abc import Mapping, Sequence

from sandboxkit.integrations._training.clock import PARTS, Part, percentiles
from sandboxkit.integrations._training.curves import part_curves, pass_at_k
from sandboxkit.integrations.grpo.buffer import Batch
from sandboxkit.integrations.grpo.rollout import Rollout
from sandboxkit.integrations.rewards import Outcome

__all__ = ["batch_metrics", "step_times"]

_WORK: tuple[Part, ...] = ("start", "tools", "grading")


def batch_metrics(batch: Batch, version: int) -> dict[str, float]:
    """Return means and shares over all rollouts that finished for a step; NaN if there are none.

    `sandbox_p50` and `sandbox_p99` are percentiles of start + tools + grading of a rollout, and those
    of `rollout/PART_seconds` of one part. They cover only rollouts with that part, and without time
    spent waiting for another rollout's verdict. `pass@k` is of the group's rollouts with a reward, and
    `parts/...` are of the cases that graders report.
    """
    rollouts = [rollout for group in batch.finished for rollout in group.rollouts]
    known = [r.verdict.reward for r in rollouts if r.verdict.reward is not None]
    needed = [rollout.verdict for rollout in rollouts if rollout.needed_sandbox]
    graded = [verdict for verdict in needed if verdict.reward is not None]
    own = [_own_seconds(rollout) for rollout in rollouts]
    ages = [version - group.version for group in batch.groups if group.version is not None]
    return {
        "reward": _mean(known),
        "pass_rate": _mean([float(reward == 1) for reward in known]),
        "rollouts": len(rollouts),
        "infra_failed_rate": (len(needed) - len(graded)) / max(len(needed), 1),
        "trust/shared": _mean([float(verdict.trust == "shared") for verdict in graded]),
        "grader_raised": sum(rollout.grader_raised for rollout in rollouts),
        "completion_tokens": sum(sum(rollout.mask) for rollout in rollouts),
        "tool_calls": sum(rollout.tool_calls for rollout in rollouts),
        "truncated": _mean([float(rollout.truncated) for rollout in rollouts]),
        "all_right": _mean([float(set(group.rewards) == {1.0}) for group in batch.finished]),
        "all_wrong": _mean([float(set(group.rewards) == {0.0}) for group in batch.finished]),
        **{
            f"outcome/{outcome}": sum(rollout.verdict.outcome is outcome for rollout in rollouts)
            for outcome in Outcome
        },
        **pass_at_k([_passed(group.rollouts) for group in batch.finished]),
        **part_curves([rollout.verdict for rollout in rollouts]),
        "groups": len(batch.groups),
        "equal_groups": batch.equal,
        "stale_groups": batch.stale,
        "remade_groups": batch.remade,
        "staleness": _mean(ages),
        **percentiles(
            "sandbox",
            [
                sum(spent.get(part, 0.0) for part in _WORK)
                for spent in own
                if not spent.keys().isdisjoint(_WORK)
            ],
        ),
        **{
            name: value
            for part in PARTS
            for name, value in percentiles(
                f"rollout/{part}_seconds", [spent[part] for spent in own if part in spent]
            ).items()
        },
    }


def step_times(
    parts: Mapping[Part, float], *, wait: float, train: float, weights: float
) -> dict[str, float]:
    """Return a step's times: waiting for rollouts, by Clock's `parts`; training; and sending weights.

    `sandbox_wait_share` is the share of the step in which no rollout sampled and it waited for
    sandboxes.
    """
    step = wait + train + weights
    sandboxes = sum(seconds for part, seconds in parts.items() if part != "sampling")
    return {
        **{f"{part}_seconds": parts[part] for part in PARTS},
        "wait_seconds": wait,
        "train_seconds": train,
        "weights_seconds": weights,
        "step_seconds": step,
        "sandbox_wait_share": sandboxes / step,
    }


def _own_seconds(rollout: Rollout) -> dict[Part, float]:
    """Return a rollout's times, without waits for another's verdict or for a sandbox that it did not use."""
    parts: tuple[Part, ...] = PARTS if rollout.used_sandbox else ("sampling",)
    if rollout.remembered:
        parts = tuple(part for part in parts if part not in ("queue", "grading"))
    return {part: rollout.seconds[part] for part in parts if part in rollout.seconds}


def _passed(rollouts: Sequence[Rollout]) -> list[bool]:
    return [each.verdict.reward == 1 for each in rollouts if each.verdict.reward is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
