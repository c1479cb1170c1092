"""Pause and resume of a sandbox: its programs stand still, and so do the timeouts of its commands."""

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import anyio

from sandboxkit._operation import Operation

if TYPE_CHECKING:
    from sandboxkit._lifecycle import Lifecycle


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
        self._left[timer] = math.inf
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


def pause(life: "Lifecycle") -> Operation[None]:
    """Pause a sandbox; see `Sandbox.pause`."""
    return _change(life, paused=True)


def resume(life: "Lifecycle") -> Operation[None]:
    """Resume a sandbox; see `Sandbox.resume`."""
    return _change(life, paused=False)


def _change(life: "Lifecycle", *, paused: bool) -> Operation[None]:
    life.refuse_ended()
    life.provider.check_pause()

    async def run(sandbox_id: str) -> None:
        async with life.clock.one:
            # Shielded: a cancelled change would leave it unknown whether the sandbox is paused.
            with anyio.CancelScope(shield=True):
                if paused:
                    await life.provider.pause(sandbox_id)
                    life.clock.pause()
                else:
                    await life.provider.resume(sandbox_id)
                    life.clock.resume()
                if life.meter is not None:
                    life.meter.hold(paused)

    return Operation(life.call(run), of=life)
