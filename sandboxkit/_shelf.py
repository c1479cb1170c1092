"""A shelf of the pool: the sandboxes of one spec that are ready, and how many are wanted."""

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import Mapping

from sandboxkit._life import Life
from sandboxkit._slots import Slots
from sandboxkit.errors import SandboxError
from sandboxkit.types import SandboxSpec

_MOMENT = 5.0
_MEMORY = 600.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_FIELDS = tuple(field.name for field in dataclasses.fields(SandboxSpec) if field.name != "files")


class Shelf:
    """What the pool has and knows of one spec; used on the background loop only."""

    def __init__(self, spec: SandboxSpec, slots: Slots) -> None:
        self.spec, self.slots = dataclasses.replace(spec, files={}), slots
        self.ready: deque[Life] = deque()
        self.making: set[Life] = set()
        self.resetting: set[Life] = set()
        self.lent = 0
        """How many sandboxes are with those who took them, or would have."""
        self.claims: deque[asyncio.Future[Life | None]] = deque()
        """Of those who wait for one that is being made or reset."""
        self.asked = 0
        self.asked_at = 0.0
        self.error: SandboxError | None = None
        """Why the newest attempt to make one failed."""
        self.not_before = 0.0
        self._pause = _FIRST_PAUSE
        self._moments: deque[tuple[float, int]] = deque()

    @property
    def coming(self) -> int:
        """How many are about to be ready."""
        return sum(not life.stopped for life in (*self.making, *self.resetting))

    @property
    def have(self) -> int:
        """How many there are to hand out, now or soon."""
        back = self.lent if self.spec.reuse == "reset" else 0
        return len(self.ready) + self.coming + back

    @property
    def unused(self) -> bool:
        """Whether nothing would be lost if it were forgotten."""
        busy = self.have or self.lent or self.claims or self._moments
        return not busy and time.monotonic() > self.not_before

    def ask(self, count: int = 1) -> None:
        """Note that so many more are wanted."""
        now = time.monotonic()
        self.asked, self.asked_at = self.asked + count, now
        if self.spec.reuse == "reset":
            count = max(count, self.lent + len(self.resetting) + 1)
        if self._moments and now < self._moments[-1][0] + _MOMENT:
            began, before = self._moments.pop()
            at_once = max(before, count) if self.spec.reuse == "reset" else before + count
            self._moments.append((began, at_once))
        else:
            self._moments.append((now, count))

    def demand(self) -> int:
        """The most that were wanted within five seconds in the last ten minutes; of those that are
        reset, the most that were wanted at a time."""
        while self._moments and self._moments[0][0] < time.monotonic() - _MEMORY:
            self._moments.popleft()
        return max((count for _, count in self._moments), default=0)

    def failed(self, error: SandboxError) -> None:
        """Note that one could not be made: the next attempt waits."""
        self.error = error
        asked = getattr(error, "retry_after", None) or 0.0
        self.not_before = time.monotonic() + max(asked, self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def succeeded(self) -> None:
        """Note that one was made."""
        self.error, self.not_before, self._pause = None, 0.0, _FIRST_PAUSE

    def withdraw(self) -> None:
        """Let those go who wait for more than is coming: each makes its own attempt."""
        while len(self.claims) > self.coming:
            claim = self.claims.pop()
            if not claim.done():
                claim.set_result(None)


def key(spec: SandboxSpec, slots: Slots) -> tuple[object, ...]:
    """What two sandboxes have in common where one can stand for the other."""
    values = (getattr(spec, name) for name in _FIELDS)
    return slots, *(
        tuple(sorted(value.items())) if isinstance(value, Mapping) else value for value in values
    )
