"""A rollout of this trainer as it is kept."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sandboxkit.integrations._kept import Call, Kept, Turn
from sandboxkit.integrations.grpo.rollout import Rollout

__all__ = ["record"]


def record(
    group: int, member: int, rollout: Rollout, decode: Callable[[Sequence[int]], str]
) -> dict[str, Any]:  # Any: JSON
    """It as JSON, as `Kept` says.

    `turns` are the policy's and the tools' in the order in which the policy saw them, special tokens
    and all. `calls` have the number of their turn; the answer to the last may be none that was seen.
    """
    task_id = rollout.row.task.get("task_id")
    return Kept(
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
        calls=[
            Call(
                call.turn,
                call.written,
                call.result.text,
                call.result.error,
                call.result.submitted,
                call.seconds,
            )
            for call in rollout.calls
        ],
    ).json()


def _turns(rollout: Rollout, decode: Callable[[Sequence[int]], str]) -> Iterator[Turn]:
    tokens = zip(rollout.mask, rollout.completion, strict=True)
    for own, each in itertools.groupby(tokens, lambda token: token[0]):
        ids = [token for _, token in each]
        yield Turn("assistant" if own else "tool", decode(ids), len(ids))
