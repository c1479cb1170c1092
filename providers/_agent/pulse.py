"""The pulse of an agent: when to ask for a sign of life, and when there was none for too long."""

import asyncio
import os
from collections.abc import Callable

from sandboxkit.providers._agent.link import Link

__all__ = ["SILENT_AFTER", "STARVED_AFTER", "Progress", "Pulse", "is_held_up"]

_TICK = 1.0
_PING_AFTER = 2.0
SILENT_AFTER = 7.0
"""Seconds without a sign of life after which requests are given up."""
STARVED_AFTER = 120.0
"""The same for an agent that is seen to be held up: what runs beside it in its sandbox can do that,
and must not be excused for it."""
_KEEP_OPEN = 15.0
"""Seconds between pings on an idle link that has a grace: its agent hears that we live."""


class Pulse:
    """Watches a link while somebody waits for its agent.

    Only time in which the event loop ran counts: who does not listen cannot say that nobody spoke.
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
        """Whether a ping is to be sent, by whoever sends."""
        self._link, self._waits, self._wake, self._silent = link, waits, wake, silent
        self._starved = starved
        self._timer: asyncio.TimerHandle | None = None
        self._heard = link.heard
        self._quiet = self._asked = 0.0
        self._idle = True
        """Whether nobody has waited since the last look."""
        self._replaced = False
        """Whether the silent connection was given up, and the requests were not."""

    def watch(self) -> None:
        """Begin to watch, for as long as somebody waits."""
        if self._idle:
            self._quiet = self._asked = 0.0  # nobody was asked anything before
            self._idle = False
        if self._timer is None:
            self._arm()

    def stop(self) -> None:
        """Watch no longer."""
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
        if not waits and not self._link.grace:
            return
        # A loop that was held up ticks late, and has heard as little as it has seen: one tick.
        self._quiet += _TICK
        self._asked += _TICK
        if self._link.heard != self._heard:
            self._heard, self._quiet, self._replaced = self._link.heard, 0.0, False
        patience = SILENT_AFTER if waits else 3 * _KEEP_OPEN
        # It is asked twice before: it compares with what it saw.
        starved = self._quiet >= patience - 2 * _TICK and self._starved()
        if self._quiet >= patience and (self._quiet >= STARVED_AFTER or not starved):
            self._quiet = 0.0  # those who ask from now on have the whole time
            self._link.give_up()
            # Over another connection the same requests may go on, if there is time for it.
            self._replaced = self._link.grace > 2 * SILENT_AFTER and not self._replaced
            if not self._replaced:
                self._silent()
        elif self._asked >= (_PING_AFTER if waits else _KEEP_OPEN) and self._quiet > 0:
            self._asked, self.due = 0.0, True
            self._wake()
        self._arm()


def is_held_up(pid: int) -> bool:
    """Whether a thread of this process of ours is ready to run, or waits within the kernel: for
    memory, which what runs beside it may have used up, or for a disk. None of one that is stopped,
    frozen or idle does."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                state = file.read().rpartition(b") ")[2][:1]
            if state == b"R" or (state == b"D" and not _is_frozen(pid)):
                return True
    except OSError:
        pass  # it has ended, which its stream will say, or what it waits for cannot be told
    return False


def _is_frozen(pid: int) -> bool:
    """Whether a freezer of cgroup v1 holds it; one of v2 lets nothing wait in state D."""
    with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers == "freezer" and path != "/":  # the root is never frozen
                with open(f"/sys/fs/cgroup/freezer{path}/freezer.state", encoding="ascii") as state:
                    return state.read() != "THAWED\n"
    return False


class Progress:
    """Whether a process of ours lives although it says nothing: it is held up, or has run, waited
    for a processor or read its memory back from a disk since it was last looked at."""

    def __init__(self) -> None:
        self._seen: tuple[int, int] = (0, 0)

    def lives(self, pid: int) -> bool:
        """Look at it now. Nothing of what is stopped or frozen changes; the first look, which has
        nothing to compare with, takes it to live."""
        before, self._seen = self._seen, (pid, _progress_of(pid))
        return before != self._seen or is_held_up(pid)


def _progress_of(pid: int) -> int:
    total = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                fields = file.read().rpartition(b") ")[2].split()
            total += int(fields[9])  # major faults
            with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                total += sum(map(int, file.read().split()[:2]))
    except (OSError, IndexError, ValueError):
        pass  # it has ended, or this kernel does not count that
    return total
