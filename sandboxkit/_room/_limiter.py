"""Hard caps on how many sandboxes of a session start or live at a time."""

from collections.abc import Callable

from sandboxkit._room._machine_semaphore import MachineSemaphore

Release = Callable[[], None]
"""Releases acquired room."""


class Limiter:
    """The session's own cap and the cap that other processes share; background loop only.

    `limit` is the own cap, None for no cap. `places` is the shared one.
    """

    def __init__(self, limit: int | None = None, places: MachineSemaphore | None = None) -> None:
        self._limit, self.places = limit, places
        self._used = 0

    def acquire(self) -> Release | None:
        """Take room without waiting; return a function that releases it, or None if there is none."""
        if self._used == self._limit:
            return None
        place = None if self.places is None else self.places.take()
        if place is None and self.places is not None:
            return None
        self._used += 1

        def release() -> None:
            self._used -= 1
            if self.places is not None and place is not None:
                self.places.leave(place)

        return release

    def wanted(self) -> bool:
        """Return whether another session, in this process or another, waits for a shared place."""
        return self.places is not None and self.places.wanted()

    def wait(self, waiting: bool) -> bool:
        """Record whether this session waits for room; return whether it waits for a shared place.

        Nothing notifies this process when another process releases a place, so the caller must poll.
        """
        if self.places is None:
            return False
        waiting = waiting and self._used != self._limit
        self.places.wait(waiting)
        return waiting

    def describe(self) -> str:
        """Return the caps, and which processes hold shared places, as text for messages."""
        caps = [] if self._limit is None else [f"max_concurrency={self._limit}"]
        return " and ".join(caps if self.places is None else [*caps, self.places.describe()])
