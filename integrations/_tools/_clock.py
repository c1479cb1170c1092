"""Deadlines that stand still while the trainer is paused."""

import asyncio
import concurrent.futures
import threading
import time
from typing import TypeVar

T = TypeVar("T")
_LEAST_WAIT = 0.02


class Clock:
    """Counts the seconds in which it is not paused. Any thread may pause and resume it.

    A trainer that stops its rollouts, say to load new weights, pauses the clock: what runs in
    the sandboxes goes on, and no deadline passes meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paused_at: float | None = None
        self._lost = 0.0

    def pause(self) -> None:
        """Stop counting; does nothing while paused."""
        with self._lock:
            if self._paused_at is None:
                self._paused_at = time.monotonic()

    def resume(self) -> None:
        """Count on; does nothing while running."""
        with self._lock:
            if self._paused_at is not None:
                self._lost += time.monotonic() - self._paused_at
                self._paused_at = None

    def time(self) -> float:
        """Seconds counted so far, from an arbitrary start."""
        with self._lock:
            now = time.monotonic() if self._paused_at is None else self._paused_at
            return now - self._lost

    async def wait_for(self, work: "concurrent.futures.Future[T]", seconds: float) -> T:
        """Return the result of an Operation or other future.

        Raises TimeoutError after `seconds` on this clock and leaves the work to the caller;
        being cancelled cancels the work.
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
            # Nobody may ask for it any more; asyncio would complain about its error.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise TimeoutError(f"not done after {seconds:g} s")
        return future.result()
