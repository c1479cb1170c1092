"""The owner's watch over a sandbox's lifetime: it ends a sandbox whose agent does not."""

import asyncio
from collections.abc import Callable, Coroutine

_LATE = 5.0
"""How long (s) after the lifetime the agent may take to end its sandbox."""


class LifetimeWatch:
    """Ends one sandbox at the end of its lifetime, which another process may have moved in its record."""

    def __init__(
        self, expires: Callable[[], float | None], end: Callable[[], Coroutine[None, None, object]]
    ) -> None:
        """`expires` returns when the sandbox expires by its record (s since the epoch)."""
        self._expires, self._end = expires, end
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None

    def begin(self, seconds: float, expires: float) -> None:
        """Watch for so many seconds from now; the record says `expires`."""
        self.stop()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds + _LATE, self._due, expires)

    def stop(self) -> None:
        """Watch no longer. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()

    def _due(self, expires: float) -> None:
        now = self._expires() or expires
        if now > expires:  # the difference does not depend on how this machine's clock is set
            self.begin(now - expires, now)
        else:
            self._task = asyncio.create_task(self._end())
