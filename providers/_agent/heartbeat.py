"""The heartbeat of an agent: it pings the agent, and gives up on a silent one."""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from sandboxkit.providers._agent.failures import SILENT_AFTER as SILENT_AFTER
from sandboxkit.providers._agent.link import Link

_TICK = 1.0
_PING_AFTER = 2.0
_REPLACED = 2
"""How many silent connections in a row are replaced before the requests on them fail."""
STARVED_AFTER = 120.0
"""SILENT_AFTER for an agent that is starved of CPU time or memory. Other processes of its sandbox can
starve it, so this time is bounded, too."""
_BUSY_SHARE = 0.1
"""An agent that ran or waited for a CPU for more than this share of a sampling interval counts as busy."""
_KEEP_OPEN = 15.0
"""Seconds between pings on an idle link with a grace; they show the agent that this client is alive."""


class Heartbeat:
    """Watches a link for silence while requests wait for its agent.

    Only time in which the event loop ran counts, because a blocked loop receives nothing. If streams
    can break without an error, a silent stream is replaced and an idle one pinged. Otherwise a broken
    stream ends visibly, so silence means that the agent hangs.
    """

    def __init__(
        self,
        link: Link,
        waits: Callable[[], bool],
        wake: Callable[[], None],
        silent: Callable[[], None],
        starved: Callable[[], bool],
    ) -> None:
        self.due = False
        """Whether the sending task must send a ping."""
        self._link, self._waits, self._wake, self._silent = link, waits, wake, silent
        self._starved = starved
        self._timer: asyncio.TimerHandle | None = None
        self._last_received = link.last_received
        self._quiet = self._since_ping = 0.0
        self._idle = True
        """Whether no request was waiting at the last tick."""
        self._replaced = 0
        """Number of silent connections replaced in a row without failing the requests."""

    def watch(self) -> None:
        """Begin to watch; watching ends by itself when no request waits any more."""
        if self._idle:
            self._quiet = self._since_ping = 0.0  # silence before the first request does not count
            self._idle = False
        if self._timer is None:
            self._arm()

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_TICK, self._tick)

    def _tick(self) -> None:
        self._timer = None
        waits = self._waits()
        self._idle = not waits
        if not waits and not self._link.falls_silent:
            return
        # A blocked loop ticks late and could not receive meanwhile: count one tick, not wall time.
        self._quiet += _TICK
        self._since_ping += _TICK
        if self._link.last_received != self._last_received:
            self._last_received, self._quiet, self._replaced = self._link.last_received, 0.0, 0
        if self._link.held or (self._link.is_between and not self._link.falls_silent):
            self._quiet = 0.0  # the stream ended; the link's grace bounds its replacement
        patience = SILENT_AFTER if waits else 3 * _KEEP_OPEN
        # Called two ticks early as well, because it compares with its last sample.
        starved = self._quiet >= patience - 2 * _TICK and self._starved()
        if self._quiet >= patience and (self._quiet >= STARVED_AFTER or not starved):
            self._quiet = 0.0  # later requests get the full time
            if self._link.falls_silent:
                self._link.give_up()
            # The requests can continue on another connection if the grace leaves enough time.
            enough = self._link.grace > (_REPLACED + 1) * SILENT_AFTER
            if self._link.falls_silent and enough and self._replaced < _REPLACED:
                self._replaced += 1
            else:
                self._replaced = 0
                self._silent()
        elif self._since_ping >= (_PING_AFTER if waits else _KEEP_OPEN) and self._quiet > 0:
            self._since_ping, self.due = 0.0, True
            self._wake()
        self._arm()


def is_held_up(pid: int) -> bool:
    """Return whether a thread of the process is runnable or in uninterruptible sleep (state R or D).

    A thread in state D waits for memory or a disk. Threads of a stopped, frozen or idle process are
    in neither state.
    """
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                state = file.read().rpartition(b") ")[2][:1]
            if state == b"R" or (state == b"D" and not _is_frozen(pid)):
                return True
    except OSError:
        pass  # the process has ended, as its stream will show, or its state cannot be read
    return False


def _is_frozen(pid: int) -> bool:
    """Return whether a cgroup v1 freezer froze the process. A v2 freezer leaves no thread in state D."""
    with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers == "freezer" and path != "/":  # the root is never frozen
                with open(f"/sys/fs/cgroup/freezer{path}/freezer.state", encoding="ascii") as state:
                    return state.read() != "THAWED\n"
    return False


@dataclass(frozen=True, slots=True)
class _ProcessSample:
    pid: int
    when: float
    busy: float
    """Seconds that its threads ran or waited for a processor, in total."""
    faults: int
    """Number of major page faults."""


class BusyDetector:
    """Detects whether a silent process is busy: held up now, or for much of the time since the last sample.

    A process that ran briefly and is idle again had time to respond, so its connection is at fault.
    """

    def __init__(self) -> None:
        self._seen: _ProcessSample | None = None

    def is_busy(self, pid: int) -> bool:
        """Take a sample; return whether the process is busy. The first sample always returns True.

        A stopped or frozen process is not busy.
        """
        before, now = self._seen, _look_at(pid)
        self._seen = now
        return (
            before is None
            or before.pid != pid
            or now.faults != before.faults
            or now.busy - before.busy > _BUSY_SHARE * (now.when - before.when)
            or is_held_up(pid)
        )


def _look_at(pid: int) -> _ProcessSample:
    busy = faults = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                fields = file.read().rpartition(b") ")[2].split()
            faults += int(fields[9])  # majflt
            with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                busy += sum(map(int, file.read().split()[:2]))
    except (OSError, IndexError, ValueError):
        pass  # the process has ended, or this kernel has no schedstat
    return _ProcessSample(pid, time.monotonic(), busy / 1e9, faults)
