"""Records of TRL's rollouts on disk, for `sandboxkit grpo show`."""

import itertools
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations._rows import plain
from sandboxkit.integrations._training import records
from sandboxkit.integrations._training.gradings import GradedSample
from sandboxkit.integrations._training.rollout_record import RolloutRecord, Turn
from sandboxkit.integrations.trl._rollout import Trace

_log = logging.getLogger("sandboxkit.trl")


class Records:
    """Writes every batch to `folder`, in the format of our grpo trainer: rollouts/ and metrics.jsonl.

    Each process but rank 0 writes to a subfolder `rank-N`. A failed write, for example on a full
    disk, logs one warning per batch and does not stop the training. Without a folder this does
    nothing.
    """

    def __init__(self, folder: str | Path | None) -> None:
        """Create the folder. Raises ConfigurationError if that fails."""
        self._groups = self._steps = 0
        self._folder: Path | None = None
        if folder is None:
            return
        rank = int(os.environ.get("RANK", "0"))
        self._folder = Path(folder) / f"rank-{rank}" if rank else Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"records={str(folder)!r} cannot be made: {error}") from error

    # Any: TRL's arguments.
    def write(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        samples: Sequence[GradedSample],
        rewards: Sequence[float | None],
        columns: Mapping[str, Any],
        traces: Sequence[Trace] | None = None,
    ) -> None:
        """Write a batch as the rollouts of the trainer's next step. A failed write only logs a warning.

        `traces` has each rollout's calls, tokens and times; None without environments.
        """
        if self._folder is None:
            return
        state = columns.get("trainer_state")
        step = self._steps = self._steps + 1 if state is None else int(state.global_step) + 1
        places = self._places(prompts)
        kept = [
            RolloutRecord(
                group=group,
                member=member,
                task_id=_cell(columns, "task_id", number),
                verdict=sample.verdict,
                reward=rewards[number],
                remembered=sample.remembered,
                truncated=trace.truncated,
                version=step - 1,
                tokens={
                    "prompt": trace.prompt_tokens,
                    "policy": _tokens(trace, columns, number),
                    "tools": trace.tool_tokens,
                },
                seconds=sample.seconds,
                prompt=_prompt_text(prompts[number]),
                turns=trace.turns or _turns(completions[number]),
                calls=trace.numbered(_calls_of(completions[number])),
            ).json()
            for number, ((group, member), sample, trace) in enumerate(
                zip(places, samples, traces or [Trace() for _ in samples], strict=True)
            )
        ]
        outcomes = Counter(f"outcome/{sample.verdict.outcome}" for sample in samples)
        known = [reward for reward in rewards if reward is not None]
        metrics = {
            "step": step,
            "rollouts": len(samples),
            "reward": sum(known) / len(known) if known else None,
            **outcomes,
        }
        try:
            records.write(self._folder, step, ({"step": step, **row} for row in kept))
            records.append(self._folder, [metrics])
        except OSError as error:
            _log.warning("the rollouts of step %d cannot be written: %s", step, error)

    def _places(self, prompts: Sequence[Any]) -> Iterator[tuple[int, int]]:
        """Yield each rollout's group number, unique in this process, and its index in the group."""
        groups: dict[str, int] = {}
        members: Counter[str] = Counter()
        for key in map(repr, prompts):
            if key not in groups:
                groups[key] = self._groups
                self._groups += 1
            yield groups[key], members[key]
            members[key] += 1


def _cell(columns: Mapping[str, Any], name: str, number: int) -> str | int | None:
    values = columns.get(name)
    value = plain(values[number]) if isinstance(values, Sequence) else None
    return value if isinstance(value, str | int) else None


def _tokens(trace: Trace, columns: Mapping[str, Any], number: int) -> int | None:
    if trace.policy_tokens is not None:
        return trace.policy_tokens
    ids = columns.get("completion_ids")
    return None if ids is None or trace.calls else len(ids[number])


def _prompt_text(prompt: Any) -> str:
    """Return a prompt's text. If it is a list of messages, each becomes "role: content"."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {_content(message)}" for message in prompt)


def _turns(completion: Any) -> Iterator[Turn]:
    if isinstance(completion, str):
        yield Turn("assistant", completion)
        return
    for role, messages in itertools.groupby(completion, lambda message: message["role"]):
        yield Turn(role, "\n".join(map(_content, messages)))


def _calls_of(completion: Any) -> Iterator[int]:
    """Yield, for each tool call of a completion, the index of the turn that made it."""
    if isinstance(completion, str):
        return
    for turn, (_, messages) in enumerate(itertools.groupby(completion, lambda each: each["role"])):
        for message in messages:
            yield from itertools.repeat(turn, len(message.get("tool_calls") or ()))


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content) if content else ""
    calls = [json.dumps(call.get("function", call)) for call in message.get("tool_calls") or ()]
    return "\n".join([text, *calls] if text else calls)
