"""A rollout as it is kept, whoever made it: all that was written, called, heard and judged, in bounds."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandboxkit.integrations._tools import truncate_middle
from sandboxkit.integrations.grpo.clock import Part
from sandboxkit.integrations.rewards import Verdict

__all__ = ["Call", "Kept", "Turn"]

_FIELD, _RECORD = 64 * 1024, 512 * 1024
"""Characters of one text, and of all texts of a rollout."""
_MOST = 500
"""Turns, and tool calls."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the policy wrote until a tool answered, or what all its tools answered then."""

    role: str
    """`assistant` or `tool`."""
    text: str
    tokens: int | None = None
    """None where the trainer does not say."""


@dataclass(frozen=True, slots=True)
class Call:
    """Of a tool."""

    turn: int
    """Its turn's place, counted from 0."""
    written: str
    answer: str
    error: bool
    submitted: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """All of a rollout; None is what its trainer does not say."""

    group: int
    member: int
    row: int | None = None
    task_id: str | int | None = None
    verdict: Verdict
    reward: float | None
    grader_raised: bool = False
    remembered: bool = False
    """Whether the verdict is that of an equal one."""
    truncated: bool | None = None
    version: int | None = None
    tokens: Mapping[str, int | None]
    """Of `prompt`, `policy` and `tools`."""
    seconds: Mapping[Part, float]
    prompt: str
    prefix: str = ""
    turns: Iterable[Turn]
    calls: Sequence[Call] = field(default=())

    def json(self) -> dict[str, Any]:  # Any: JSON
        """It as JSON; `cut` names what was longer than is kept, which says so in its middle."""
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
