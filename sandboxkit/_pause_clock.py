"""The timers of a sandbox's commands, which stand still while it is paused."""

import contextlib
import math
from collections.abc import Iterator

import anyio


class PauseClock:
    """Whether a sandbox is paused, and the timers that stop meanwhile; background loop only."""

    def __init__(self) -> None:
        self.paused = False
        self.one = anyio.Lock()
        """Held while the sandbox is paused or resumed, or its snapshot is taken."""
        self._left: dict[anyio.CancelScope, float] = {}
        """The timers, each with the seconds that it had left when the sandbox was paused."""

    @contextlib.contextmanager
    def stops(self, timer: anyio.CancelScope) -> Iterator[None]:
        """Stop the timer, a scope that the caller has entered, whenever the sandbox is paused."""
        self._left[timer] = timer.deadline - anyio.current_time()
        if self.paused:  # a resume may be on its way, and let the command begin
            timer.deadline = math.inf
        try:
            yield
        finally:
            del self._left[timer]

    def pause(self) -> None:
        """Stop the timers. Idempotent."""
        if not self.paused:
            self.paused = True
            for timer in self._left:
                self._left[timer] = timer.deadline - anyio.current_time()
                timer.deadline = math.inf

    def resume(self) -> None:
        """Let the timers go on. Idempotent."""
        if self.paused:
            self.paused = False
            for timer, left in self._left.items():
                timer.deadline = anyio.current_time() + left
