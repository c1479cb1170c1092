"""What is kept of the rollouts of TRL's trainer: the files that `sandboxkit grpo show` reads."""

import itertools
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations._kept import Kept, Turn
from sandboxkit.integrations.grpo import records
from sandboxkit.integrations.trl._batch import Sample
from sandboxkit.integrations.trl._rollout import Trace

_log = logging.getLogger("sandboxkit.trl")


class Records:
    """Writes every batch into `folder`, as grpo's own trainer does: rollouts/ and metrics.jsonl.

    Of several processes each but the first has a folder `rank-N` of its own in it. A disk without
    room is said once for each batch, and stops nobody. Without a folder nothing is written.
    """

    def __init__(self, folder: str | Path | None) -> None:
        """Raises ConfigurationError for a folder that cannot be made."""
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

    # Any: what TRL hands over.
    def write(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        samples: Sequence[Sample],
        rewards: Sequence[float | None],
        columns: Mapping[str, Any],
        traces: Sequence[Trace] | None = None,
    ) -> None:
        """A batch, as that of the step that the trainer makes next."""
        if self._folder is None:
            return
        state = columns.get("trainer_state")
        step = self._steps = self._steps + 1 if state is None else int(state.global_step) + 1
        places = self._places(prompts)
        kept = [
            Kept(
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
                prompt=_said(prompts[number]),
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
            with (self._folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(metrics) + "\n")
        except OSError as error:
            _log.warning("the rollouts of step %d cannot be written: %s", step, error)

    def _places(self, prompts: Sequence[Any]) -> Iterator[tuple[int, int]]:
        """Each rollout's group, which has a number of its own in this process, and place in it."""
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
    value = values[number] if isinstance(values, Sequence) else None
    return value if isinstance(value, str | int) else None


def _tokens(trace: Trace, columns: Mapping[str, Any], number: int) -> int | None:
    if trace.policy_tokens is not None:
        return trace.policy_tokens
    ids = columns.get("completion_ids")
    return None if ids is None or trace.calls else len(ids[number])


def _said(prompt: Any) -> str:
    """A prompt's text: as it is, or its messages under their roles."""
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
    """For each tool call in it the place of its turn."""
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
