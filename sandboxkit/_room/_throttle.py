"""AdmissionThrottle: slows a session's creations while the backend has no capacity or sets a delay."""

import asyncio
import math
import time
from collections import deque

from sandboxkit.errors import CapacityError, ProviderUnavailableError, SandboxError
from sandboxkit.provider import Box, FirstCommand, Provider
from sandboxkit.types import SandboxSpec

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
"""Pause (s) after an error without `retry_after`; it doubles with each consecutive error."""
_PATIENCE = 60.0
"""Longest pause (s) that creations wait out; a longer `retry_after` fails them at once."""


class AdmissionThrottle:
    """An adaptive limit on concurrent creations; used on the background loop only.

    After a CapacityError, or a ProviderUnavailableError with `retry_after`, all creations pause.
    Then the limit is half the number of creations that ran at the refusal, and grows by one with each success.
    Without the limit, the backend would refuse all waiting creations together.
    """

    def __init__(self) -> None:
        self._line: deque[asyncio.Future[None]] = deque()
        self.running = 0
        """How many creations are running."""
        self._width = math.inf
        self._until = 0.0
        self._pause = _FIRST_PAUSE
        self._full = False
        """Whether the pause is due to a CapacityError."""
        self._why: SandboxError | None = None

    @property
    def is_open(self) -> bool:
        """Whether a creation would start without waiting."""
        return not self._line and self._may_go()

    @property
    def closed_for(self) -> float:
        """Seconds until the pause ends; 0 without a pause."""
        return max(0.0, self._until - time.monotonic())

    @property
    def refusal(self) -> SandboxError | None:
        """The error that began the pause; None without a pause and without waiting creations."""
        return self._why if self._line or self.closed_for else None

    async def create(
        self, provider: Provider, spec: SandboxSpec, first: FirstCommand | None = None
    ) -> Box:
        """Wait for admission, and return what `provider.create` returns.

        Raises what `provider.create` raises, and ProviderUnavailableError for a pause over 60 s.
        """
        await self._turn()
        try:
            box = await provider.create(spec, first)
        except (CapacityError, ProviderUnavailableError) as error:
            self._refused(error)
            raise
        else:
            self._width += 1
            self._pause = _FIRST_PAUSE
            return box
        finally:
            self.running -= 1
            self._let_through()

    def room(self) -> None:
        """Record that a sandbox was deleted: end a pause that is due to a CapacityError."""
        if self._full and self._until:
            self._until = 0.0
            self._let_through()

    async def _turn(self) -> None:
        join = self._line.append
        while True:
            if self.closed_for > _PATIENCE:
                assert self._why is not None
                raise ProviderUnavailableError(
                    f"creations pause for {self.closed_for:.0f} s, as the backend asked: {self._why}",
                    provider=self._why.provider,
                    retry_after=self.closed_for,
                )
            place = asyncio.get_running_loop().create_future()
            join(place)
            self._let_through()
            try:
                await place
            except BaseException:
                if place in self._line:
                    self._line.remove(place)
                elif not place.cancelled():
                    self.running -= 1
                self._let_through()
                raise
            if not self.closed_for:
                return
            self.running -= 1  # another was refused after this one was let through
            join = self._line.appendleft

    def _may_go(self) -> bool:
        return self.running < self._width and not self.closed_for

    def _let_through(self) -> None:
        while self._line and (self._may_go() or self.closed_for > _PATIENCE):  # then it raises
            place = self._line.popleft()
            if not place.done():
                self.running += 1
                place.set_result(None)

    def _refused(self, error: CapacityError | ProviderUnavailableError) -> None:
        pause = error.retry_after if isinstance(error, ProviderUnavailableError) else self._pause
        if pause is None:
            return
        self._full = isinstance(error, CapacityError)
        if self._full:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._why = error
        self._width = max(1, self.running // 2)
        self._until = max(self._until, time.monotonic() + pause)
        asyncio.get_running_loop().call_later(self.closed_for + 0.01, self._let_through)
