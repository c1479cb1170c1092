"""Slots: hard caps on how many sandboxes start or live at a time."""

import contextlib
from collections.abc import Callable

import anyio

from sandboxkit._machine_semaphore import MachineSemaphore

Release = Callable[[], None]
"""Releases an acquired slot."""


class Limiter:
    """Hard caps on starting and live sandboxes; used on the background loop only.

    `limit` is this object's own cap, None for no cap. `places` is the cap that other processes
    share.
    """

    def __init__(self, limit: int | None = None, places: MachineSemaphore | None = None) -> None:
        self._limit, self._places = limit, places
        self._semaphore: anyio.Semaphore | None = None

    @property
    def wanted(self) -> bool:
        """Whether anyone else waits for shared places, in this process or another."""
        return self._places is not None and self._places.wanted()

    @property
    def wanted_elsewhere(self) -> Callable[[], bool] | None:
        """The `wanted` function of the shared places; None if nothing is shared."""
        return None if self._places is None else self._places.wanted

    def describe(self) -> str:
        """Return the caps and the holders of shared places, for messages."""
        caps = [] if self._limit is None else [f"max_concurrency={self._limit}"]
        return " and ".join(caps if self._places is None else [*caps, self._places.describe()])

    async def acquire(self) -> Release:
        """Wait for a slot; return a function that releases it. If cancelled, no slot is held."""
        with contextlib.ExitStack() as held:
            if (own := self._own()) is not None:
                await own.acquire()
                held.callback(own.release)
            if self._places is not None:
                place = await self._places.take()
                held.callback(self._places.leave, place)
            return held.pop_all().close

    def acquire_now(self) -> Release | None:
        """Take a slot without waiting; return None if none is free or others wait for it."""
        with contextlib.ExitStack() as held:
            if (own := self._own()) is not None:
                try:
                    own.acquire_nowait()
                except anyio.WouldBlock:
                    return None
                held.callback(own.release)
            if self._places is not None:
                place = self._places.take_now()
                if place is None:
                    return None
                held.callback(self._places.leave, place)
            return held.pop_all().close

    def _own(self) -> anyio.Semaphore | None:
        if self._semaphore is None and self._limit is not None:
            self._semaphore = anyio.Semaphore(self._limit)
        return self._semaphore
