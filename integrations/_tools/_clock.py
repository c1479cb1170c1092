"""A clock for deadlines that stops while the trainer is paused."""

import asyncio
import concurrent.futures
import threading
import time
from typing import TypeVar

T = TypeVar("T")
_LEAST_WAIT = 0.02


class Clock:
    """Counts the seconds in which it is not paused. Any thread may pause and resume it.

    A trainer that suspends its rollouts, for example to load new weights, pauses the clock.
    Programs in the sandboxes keep running, but no deadline expires meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paused_at: float | None = None
        self._lost = 0.0

    def pause(self) -> None:
        """Stop the clock; does nothing if it is already paused."""
        with self._lock:
            if self._paused_at is None:
                self._paused_at = time.monotonic()

    def resume(self) -> None:
        """Restart the clock; does nothing if it is running."""
        with self._lock:
            if self._paused_at is not None:
                self._lost += time.monotonic() - self._paused_at
                self._paused_at = None

    def time(self) -> float:
        """Return the seconds counted so far, from an arbitrary start."""
        with self._lock:
            now = time.monotonic() if self._paused_at is None else self._paused_at
            return now - self._lost

    async def wait_for(self, work: "concurrent.futures.Future[T]", seconds: float) -> T:
        """Return the result of an Operation or another future.

        Raises TimeoutError after `seconds` on this clock; the work then continues, and the caller
        may cancel it. Cancelling this coroutine cancels the work.
        """
        deadline = self.time() + seconds
        future = asyncio.wrap_future(work)
        try:
            while not future.done() and (left := deadline - self.time()) > 0:
                await asyncio.wait({future}, timeout=max(left, _LEAST_WAIT))
        except asyncio.CancelledError:
            future.cancel()
            raise
        if not future.done():
            # Retrieve its error, or asyncio would log it if nobody awaits the future.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise TimeoutError(f"not done after {seconds:g} s")
        return future.result()
