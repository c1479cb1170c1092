"""Script: the recorded calls of one sandbox, which a replay takes one by one."""

import re
from collections.abc import Mapping
from typing import Any

import anyio

from sandboxkit.recording._content import Json

POLLED = frozenset({"get", "ready", "usage", "logs", "diagnose"})
"""Calls whose number depends on timing; a replay repeats the last recorded result."""
_LOOSE = POLLED | {"delete"}
_TOKEN = re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{16}|[0-9a-f]{32})(?![0-9a-f])")
_TOKEN_BYTES = re.compile(_TOKEN.pattern.encode())


class Renames:
    """Maps random tokens of the recorded program to the corresponding tokens of the replayed program.

    A token is a hexadecimal number of 16 or 32 digits. A token may differ if the recorded program created
    it, which is assumed if it first appeared in the program's arguments or input.
    """

    def __init__(self, calls: list[Json]) -> None:
        self._now: dict[str, str] = {}
        """Maps each recorded token to the token of this run."""
        self._fresh = _made_by_program(calls)

    def same(self, recorded: str, now: str) -> bool:
        """Return whether the texts are equal except for tokens that may differ; then map these for good."""
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
    """Return a JSON value as a canonical text: equal values give equal texts."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{flat(each)}" for key, each in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(flat, value)) + "]"
    return repr(value)


class Script:
    """The recorded calls of one sandbox, in the order in which they began.

    A replayed call takes the first equal recorded call, unless a remaining call had ended before that
    one began. A recorded event waits until the program has done everything that it had done before the
    event.
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
            self._awaited.update(
                at for at, kind, _ in call.get("events", ()) if kind in ("stdin", "eof")
            )
        self._order = sorted(self._awaited, reverse=True)
        self._moved = anyio.Event()

    def polled(self, name: str) -> Json | None:
        """Return the next recorded call `name`, one of `POLLED`; at the end repeat the last one."""
        calls = self._polled.get(name, [])
        return calls.pop(0) if len(calls) > 1 else (calls[0] if calls else None)

    def open_calls(self) -> list[Json]:
        """Return the calls that may come next: those that began before any remaining call had ended."""
        found: list[Json] = []
        for call in self.calls:
            if call["call"] in _LOOSE:
                continue
            if any(each["ended"] < call["began"] for each in found):
                break  # the others began even later
            found.append(call)
        return found

    def take(self, name: str, arguments: Json, renames: Renames) -> Json | None:
        """Take the first recorded call that may come next and is equal; None if there is none."""
        now = flat(arguments)
        for call in self.open_calls():
            if call["call"] == name and renames.same(flat(call["arguments"]), now):
                self._taken(call)
                return call
        return None

    def deleted(self) -> None:
        """Record that the program deleted the sandbox."""
        for call in [call for call in self.calls if call["call"] == "delete"][:1]:
            self._taken(call)

    def _taken(self, call: Json) -> None:
        self.calls.remove(call)
        self.used = True
        self.happened(call["began"])

    def happened(self, at: int) -> None:
        """Record that the program has repeated its action of the logical time `at`."""
        self._awaited.discard(at)
        self._moved.set()
        self._moved = anyio.Event()

    def over(self, call: Json) -> None:
        """Record that a call has ended, so that nothing waits for the rest of its input."""
        for at, _, _ in call.get("events", ()):
            self._awaited.discard(at)
        self.happened(call["ended"])

    async def until(self, at: int) -> None:
        """Wait until the program has repeated all its actions before the logical time `at`."""
        while self._first(at) < at:
            await self._moved.wait()

    def _first(self, default: int) -> int:
        """Return the logical time of the first action that the program has yet to repeat, or `default`."""
        while self._order and self._order[-1] not in self._awaited:
            self._order.pop()
        return self._order[-1] if self._order else default


# Any: a call's arguments.
def difference(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return two lines for each argument that differs: the recorded value and the current one."""
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
