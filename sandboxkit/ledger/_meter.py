"""SandboxMeter: turns readings of one sandbox's counters into amounts for the ledger."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace

from sandboxkit.errors import SandboxNotFoundError, SandboxTerminatedError
from sandboxkit.ledger._amounts import Amounts
from sandboxkit.provider import Box
from sandboxkit.types import SandboxSpec, Usage

_log = logging.getLogger("sandboxkit")

_READ_SECONDS = 1.0
"""How long (s) a reading may take; it delays the deletion of a sandbox whose agent does not answer."""
_FIRST_SECONDS, _LONGEST_SECONDS = 0.25, 30.0
"""The interval (s) between readings: the sandbox's age, between these bounds. Elsewhere than on this machine
it is always the longest one, because a reading may be a request that a vendor counts."""
_MOST_PROCESSORS, _MOST_MEMORY, _MOST_BYTES = 256, 512 << 30, 100e9
"""The most that a sandbox without limits has, if its machine is not known: processors, bytes, and bytes sent or
received a second."""
_SLACK_SECONDS = 1.0
"""How long (s) before its meter a sandbox may have begun."""


class SandboxMeter:
    """Measures one sandbox from its creation to its end. Used on the background loop only.

    Between two readings memory is taken to change evenly; after the last one it stays as it was. What the
    sandbox says of itself counts only up to its limits, or those of its machine, for the time that it existed.
    """

    def __init__(
        self,
        spec: SandboxSpec,
        box: Box,
        charge: Callable[[Amounts], None],
        ended: Callable[["SandboxMeter"], None],
    ) -> None:
        """`charge` takes what was used since the last charge; `ended` is called once, at the end."""
        self._box = box
        self._charge, self._ended = charge, ended
        self._cpus = spec.cpus or max(os.cpu_count() or 1, _MOST_PROCESSORS)
        most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        most = most if box.provider.on_this_machine else _MOST_MEMORY
        self._most_memory = most if spec.memory_mb is None else spec.memory_mb << 20
        self._began = self._charged = time.monotonic()
        self._until: float | None = None
        """When the sandbox ended by itself (monotonic seconds)."""
        self._paused: float | None = None
        """Since when the sandbox is paused (monotonic seconds); None if it is not."""
        self._processor: tuple[float, float] = (self._began, 0.0)
        self._bytes: tuple[float, int, int] = (self._began, 0, 0)
        self._memory: float | None = None
        """The resident memory (bytes) at the last reading that had it."""
        self._first = _FIRST_SECONDS if box.provider.on_this_machine else _LONGEST_SECONDS
        self._late: asyncio.Task[Usage | None] | None = None
        """The newest reading, which may not have ended in time."""
        self.due = self._began + self._first
        """When the next reading is due (monotonic seconds)."""
        charge(Amounts(starts=1))

    def hold(self, paused: bool) -> None:
        """Charge nothing from now on, because the sandbox is paused, or charge again. Idempotent."""
        now = time.monotonic()
        if self._until is None and paused and self._paused is None:
            self._count(now, None)
            self._paused, self.due = now, float("inf")
        elif self._until is None and not paused and self._paused is not None:
            gap, self._paused, self.due = now - self._paused, None, now
            self._began, self._charged = self._began + gap, self._charged + gap
            self._processor = self._processor[0] + gap, self._processor[1]
            self._bytes = self._bytes[0] + gap, *self._bytes[1:]

    async def read(self) -> None:
        """Read the counters and charge what was used. A sandbox that is gone is charged no further."""
        usage = await self._reading(last=False)
        now = self._now()
        if self._paused is None:
            self.due = now + min(max(now - self._began, self._first), _LONGEST_SECONDS)
        if self._until is None:
            self._count(now, usage)

    def stop(self) -> None:
        """Charge time up to now: the sandbox has ended by itself, or this process no longer watches it."""
        if self._until is None:
            self._finish(None)

    async def end(self) -> None:
        """Read the counters for the last time, just before the sandbox's deletion, and charge them."""
        usage: Usage | None = None
        try:
            usage = await self._reading(last=True)
            if usage is not None:  # the work has ended: its memory is no longer what it was
                usage = replace(usage, memory_bytes=None)
        finally:
            self._finish(usage)

    def _finish(self, usage: Usage | None) -> None:
        self._until = self._now()
        self._count(self._until, usage)
        self._ended(self)

    async def _reading(self, *, last: bool) -> Usage | None:
        clock = asyncio.get_running_loop().time
        until = clock() + _READ_SECONDS
        if self._late is not None and not self._late.done():
            if last:  # what was used since the reading before it would be lost
                await asyncio.wait([self._late], timeout=_READ_SECONDS)
            if not self._late.done():
                return None
        # A late reading goes on: cancelling a request makes the client wait for the agent's confirmation.
        self._late = reading = asyncio.create_task(self._box.metered(last=last))
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.wait([reading], timeout=until - clock())
            if reading.done():
                return reading.result()
        except (SandboxNotFoundError, SandboxTerminatedError):
            self.stop()
        except Exception as error:  # noqa: BLE001 - no sandbox may fail for it; it is logged
            _log.debug("what sandbox %s uses could not be read: %s", self._box.id, error)
        return None

    def _now(self) -> float:
        at = self._paused if self._until is None else self._until
        return time.monotonic() if at is None else at

    def _count(self, now: float, usage: Usage | None) -> None:
        amounts = Amounts(sandbox_seconds=max(now - self._charged, 0.0))
        memory = None if usage is None else usage.memory_bytes
        before = self._memory
        if memory is not None or before is not None:
            given = [each for each in (before, memory) if each is not None]
            known = [_within(each, 0.0, self._most_memory) for each in given]
            amounts.memory_known = amounts.sandbox_seconds
            amounts.memory_byte_seconds = amounts.sandbox_seconds * sum(known) / len(known)
            self._memory = known[-1]
        if usage is not None and usage.processor_seconds is not None:
            since, seen = self._processor
            used = self._counter(usage.processor_seconds, seen, self._cpus, now)
            amounts.processor_known = max(now - since, 0.0)
            amounts.processor_seconds = used - seen
            self._processor = now, used
        if usage is not None and usage.sent_bytes is not None and usage.received_bytes is not None:
            since, sent, received = self._bytes
            amounts.bytes_known = max(now - since, 0.0)
            more = self._counter(usage.sent_bytes, sent, _MOST_BYTES, now)
            again = self._counter(usage.received_bytes, received, _MOST_BYTES, now)
            amounts.sent_bytes, amounts.received_bytes = int(more - sent), int(again - received)
            self._bytes = now, int(more), int(again)
        self._charged = max(now, self._charged)
        self._charge(amounts)

    def _counter(self, value: float, seen: float, rate: float, now: float) -> float:
        """Return a counter's value: not below the one before, and at most `rate` for each second so far."""
        return _within(value, seen, max(rate * (now - self._began + _SLACK_SECONDS), seen))


def _within(value: float, least: float, most: float) -> float:
    """Return the value, or the bound that it exceeds; the least one for NaN."""
    return most if value > most else value if value >= least else least
