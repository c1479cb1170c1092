"""The record of one rollout, from any trainer: texts, tool calls and verdict, with size limits."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandboxkit.integrations._tools import truncate_middle
from sandboxkit.integrations._training.clock import Part
from sandboxkit.integrations.rewards import Verdict

_FIELD, _RECORD = 64 * 1024, 512 * 1024
"""Maximum characters of one text, and of all texts of a rollout."""
_MOST = 500
"""Maximum number of turns, and of tool calls."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: the policy's text up to its tool calls, or the results of those calls."""

    role: str
    """`assistant` or `tool`."""
    text: str
    tokens: int | None = None
    """Number of tokens; None if the trainer does not report it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call. `written` is its JSON as the policy wrote it, `answer` the tool's result."""

    turn: int
    """Index of the turn that made the call, from 0."""
    written: str
    answer: str
    error: bool
    submitted: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    """One rollout. `member` is its index in its group, `version` that of the policy's weights.

    A field is None if the trainer does not report it.
    """

    group: int
    member: int
    row: int | None = None
    task_id: str | int | None = None
    verdict: Verdict
    reward: float | None
    grader_raised: bool = False
    remembered: bool = False
    """Whether the verdict was copied from an equal rollout."""
    truncated: bool | None = None
    version: int | None = None
    tokens: Mapping[str, int | None]
    """Number of tokens under the keys `prompt`, `policy` and `tools`."""
    seconds: Mapping[Part, float]
    prompt: str
    prefix: str = ""
    turns: Iterable[Turn]
    calls: Sequence[Call] = field(default=())

    def json(self) -> dict[str, Any]:  # Any: JSON
        """Return the record as JSON. Its key `cut` lists the fields that were shortened."""
        texts, verdict = _Texts(), self.verdict
        turns = iter(self.turns)
        made: dict[str, Any] = {"group": self.group, "member": self.member, "row": self.row}
        if self.task_id is not None:
            made["task_id"] = texts.kept("task_id", str(self.task_id))
        made |= {
            "reward": self.reward,
            "outcome": str(verdict.outcome),
            "score": verdict.score,
            "attributable_to": verdict.attributable_to,
            "trust": verdict.trust,
            "detail": texts.kept("detail", verdict.detail),
            "parts": [
                [
                    texts.kept(f"parts.{number}", part.name),
                    str(part.outcome),
                    part.score,
                    part.weight,
                    part.processor_seconds,
                ]
                for number, part in enumerate(verdict.parts[:_MOST])
            ],
            "grader_raised": self.grader_raised,
            "remembered": self.remembered,
            "truncated": self.truncated,
            "version": self.version,
            "tokens": dict(self.tokens),
            "seconds": {part: round(seconds, 6) for part, seconds in self.seconds.items()},
            "prompt": texts.kept("prompt", self.prompt),
            "prefix": texts.kept("prefix", self.prefix),
            "turns": [
                {
                    "role": turn.role,
                    "tokens": turn.tokens,
                    "text": texts.kept(f"turns.{number}", turn.text),
                }
                for number, turn in enumerate(itertools.islice(turns, _MOST))
            ],
            "calls": [
                {
                    "turn": call.turn,
                    "call": texts.kept(f"calls.{number}.call", call.written),
                    "answer": texts.kept(f"calls.{number}.answer", call.answer),
                    "error": call.error,
                    "submitted": call.submitted,
                    "seconds": round(call.seconds, 6),
                }
                for number, call in enumerate(self.calls[:_MOST])
            ],
        }
        more = {"turns": next(turns, None) is not None, "calls": len(self.calls) > _MOST}
        more["parts"] = len(verdict.parts) > _MOST
        return {**made, "cut": [*texts.cut, *(name for name, cut in more.items() if cut)]}


class _Texts:
    def __init__(self) -> None:
        self.cut: list[str] = []
        self._left = _RECORD

    def kept(self, name: str, text: str) -> str:
        most = max(1, min(_FIELD, self._left))
        if len(text) > most:
            self.cut.append(name)
        made = truncate_middle(text, most)
        self._left -= len(made)
        return made
