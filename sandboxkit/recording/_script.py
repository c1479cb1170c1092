"""Script: the recorded calls of one sandbox, which a replay takes one by one."""

import re
from collections.abc import Mapping
from typing import Any

import anyio

from sandboxkit.recording._content import Json

POLLED = frozenset({"get", "ready", "usage", "logs", "diagnose"})
"""Calls that a program makes as often as time has it; a replay repeats the last answer."""
_LOOSE = POLLED | {"delete"}
_TOKEN = re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{16}|[0-9a-f]{32})(?![0-9a-f])")
_TOKEN_BYTES = re.compile(_TOKEN.pattern.encode())


class Renames:
    """Random tokens of the recorded program, and those that the replayed program has in their place.

    A token is a hexadecimal number of 16 or 32 digits. One may differ if it was new when the recorded
    program passed it to a call: then the program made it.
    """

    def __init__(self, calls: list[Json]) -> None:
        self._now: dict[str, str] = {}
        """Recorded token to the token of now."""
        self._fresh = _made_by_program(calls)

    def same(self, recorded: str, now: str) -> bool:
        """Return whether the texts are equal but for new tokens, which are then renamed for good."""
        if _TOKEN.sub("", recorded) != _TOKEN.sub("", now):
            return False
        renamed = dict(self._now)
        for old, new in zip(_TOKEN.findall(recorded), _TOKEN.findall(now), strict=True):
            if renamed.setdefault(old, new if old in self._fresh else old) != new:
                return False
        if len(set(renamed.values())) != len(renamed):
            return False
        self._now = renamed
        return True

    def translate(self, data: bytes) -> bytes:
        """Replace the random tokens in recorded bytes by those of this run."""
        names = self._now
        return _TOKEN_BYTES.sub(
            lambda found: names.get(found[0].decode(), found[0].decode()).encode(), data
        )


def _made_by_program(calls: list[Json]) -> set[str]:
    moments: list[tuple[int, bool, str]] = []
    for call in calls:
        moments.append((call["began"], True, flat(call["arguments"])))
        result = [call.get("result"), call.get("error")]
        moments.append((call["ended"], False, flat(result)))
        for at, kind, content in call.get("events", ()):
            moments.append((at, kind == "stdin", content if isinstance(content, str) else ""))
    seen: set[str] = set()
    fresh: set[str] = set()
    for _, by_program, text in sorted(moments):
        tokens = set(_TOKEN.findall(text)) - seen
        seen |= tokens
        if by_program:
            fresh |= tokens
    return fresh


def flat(value: Json) -> str:
    """Return a JSON value as one text, in which equal values have equal forms."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{flat(each)}" for key, each in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(flat, value)) + "]"
    return repr(value)


class Script:
    """The recorded calls of one sandbox, in the order in which they began.

    A call of now takes the first recorded call that is equal, unless one that is left had ended
    before that one began. An event of the recording waits until everything has happened that the
    program had done before it.
    """

    def __init__(self, calls: list[Json]) -> None:
        self.calls = [call for call in calls if call["call"] not in POLLED]
        self._polled: dict[str, list[Json]] = {}
        for call in calls:
            if call["call"] in POLLED:
                self._polled.setdefault(call["call"], []).append(call)
        self.used = False
        """Whether a call was taken."""
        self._awaited = {call["began"] for call in self.calls}
        for call in self.calls:
            self._awaited.update(at for at, kind, _ in call.get("events", ()) if _is_input(kind))
        self._order = sorted(self._awaited, reverse=True)
        self._moved = anyio.Event()

    def polled(self, name: str) -> Json | None:
        """Return the next recorded answer to a call of `POLLED`, the last one again at the end."""
        answers = self._polled.get(name, [])
        return answers.pop(0) if len(answers) > 1 else (answers[0] if answers else None)

    def open_calls(self) -> list[Json]:
        """Return the calls that may come next: none that is left had ended before one of them began."""
        found: list[Json] = []
        for call in self.calls:
            if call["call"] in _LOOSE:
                continue
            if any(each["ended"] < call["began"] for each in found):
                break  # and the others begin later still
            found.append(call)
        return found

    def take(self, name: str, arguments: Json, renames: Renames) -> Json | None:
        """Take the recorded call that is equal; None if there is none."""
        now = flat(arguments)
        for call in self.open_calls():
            if call["call"] == name and renames.same(flat(call["arguments"]), now):
                self._taken(call)
                return call
        return None

    def deleted(self) -> None:
        """Note that the sandbox is deleted."""
        for call in [call for call in self.calls if call["call"] == "delete"][:1]:
            self._taken(call)

    def _taken(self, call: Json) -> None:
        self.calls.remove(call)
        self.used = True
        self.happened(call["began"])

    def happened(self, at: int) -> None:
        """Note that the program has done what it did at `at` in the recording."""
        self._awaited.discard(at)
        self._moved.set()
        self._moved = anyio.Event()

    def over(self, call: Json) -> None:
        """Note that a call has ended, so that nothing waits for the rest of its input."""
        for at, _, _ in call.get("events", ()):
            self._awaited.discard(at)
        self.happened(call["ended"])

    async def until(self, at: int) -> None:
        """Wait until the program has done everything that it had done before `at`."""
        while self._first(at) < at:
            await self._moved.wait()

    def _first(self, default: int) -> int:
        """Return the time of the first thing that the program has not done yet."""
        while self._order and self._order[-1] not in self._awaited:
            self._order.pop()
        return self._order[-1] if self._order else default


def _is_input(kind: str) -> bool:
    return kind in ("stdin", "eof")


# Any: a call's arguments.
def difference(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return a line for each argument that differs, with what was recorded and what is asked now."""
    lines: list[str] = []
    for name in sorted({*recorded, *now}):
        old, new = flat(recorded.get(name)), flat(now.get(name))
        if old != new:
            shared = next(
                (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
                min(len(old), len(new)),
            )
            start = max(0, shared - 40)
            lines.append(f"  {name} recorded: {_part(old, start)}")
            lines.append(f"  {name} now:      {_part(new, start)}")
    return "\n".join(lines)


def _part(text: str, start: int) -> str:
    return ("…" if start else "") + text[start : start + 160]
