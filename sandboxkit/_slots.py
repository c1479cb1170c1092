"""Slots: room for sandboxes under the caps that apply to them."""

import contextlib
from collections.abc import Callable

import anyio

from sandboxkit._places import Places

Leave = Callable[[], None]
"""Gives room back."""


class Slots:
    """Hard caps on sandboxes that live or start; used on the background loop only.

    `limit` is this object's own, None for none; `places` are shared with other processes.
    """

    def __init__(self, limit: int | None = None, places: Places | None = None) -> None:
        self._limit, self._places = limit, places
        self._semaphore: anyio.Semaphore | None = None

    @property
    def wanted(self) -> bool:
        """Whether somebody else than this object waits for places, here or in another process."""
        return self._places is not None and self._places.wanted()

    async def acquire(self) -> Leave:
        """Wait for room; what is returned gives it back. Cancelled: nothing is held."""
        with contextlib.ExitStack() as held:
            if (own := self._own()) is not None:
                await own.acquire()
                held.callback(own.release)
            if self._places is not None:
                place = await self._places.take()
                held.callback(self._places.leave, place)
            return held.pop_all().close

    def acquire_now(self) -> Leave | None:
        """Take room where there is some that nobody waits for."""
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
