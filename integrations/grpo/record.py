"""Records of this trainer's rollouts."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sandboxkit.integrations._training.rollout_record import RolloutRecord, Turn
from sandboxkit.integrations.grpo.rollout import Rollout

__all__ = ["record"]


def record(
    group: int, member: int, rollout: Rollout, decode: Callable[[Sequence[int]], str]
) -> dict[str, Any]:  # Any: JSON
    """Return the rollout as JSON, see `RolloutRecord`.

    `turns` are those of the policy and of the tools in order, including special tokens. Each of the
    `calls` has the index of its turn. The policy may never have seen the answer to the last call.
    """
    task_id = rollout.row.task.get("task_id")
    return RolloutRecord(
        group=group,
        member=member,
        row=rollout.row.number,
        task_id=task_id if isinstance(task_id, str | int) else None,
        verdict=rollout.verdict,
        reward=rollout.verdict.reward,
        grader_raised=rollout.grader_raised,
        remembered=rollout.remembered,
        truncated=rollout.truncated,
        version=rollout.version,
        tokens={
            "prompt": len(rollout.row.prompt),
            "policy": sum(rollout.mask),
            "tools": len(rollout.mask) - sum(rollout.mask),
        },
        seconds=rollout.seconds,
        prompt=rollout.row.text,
        prefix=rollout.row.prefix,
        turns=_turns(rollout, decode),
        calls=rollout.calls,
    ).json()


def _turns(rollout: Rollout, decode: Callable[[Sequence[int]], str]) -> Iterator[Turn]:
    tokens = zip(rollout.mask, rollout.completion, strict=True)
    for own, each in itertools.groupby(tokens, lambda token: token[0]):
        ids = [token for _, token in each]
        yield Turn("assistant" if own else "tool", decode(ids), len(ids))
