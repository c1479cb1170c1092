"""The line: starts that wait for room, or for a ready sandbox that spares it."""

import asyncio
from collections import deque
from collections.abc import Callable

import anyio

from sandboxkit._life import Life
from sandboxkit._shelf import Shelf
from sandboxkit._slots import Leave, Slots
from sandboxkit.errors import SandboxError


class _Waiter:
    def __init__(self, shelf: Shelf | None) -> None:
        self.shelf = shelf
        self.given: asyncio.Future[Life | Leave] = asyncio.get_running_loop().create_future()


class Line:
    """Who comes first gets the next room; a sandbox goes to the first who can use it.

    Used on the background loop only. While anybody waits, one task waits for room for all.
    """

    def __init__(self, slots: Slots, put_back: Callable[[Shelf, Life], None]) -> None:
        self._slots, self._put_back = slots, put_back
        self._waiters: deque[_Waiter] = deque()
        self._seeking: tuple[anyio.CancelScope, asyncio.Task[None]] | None = None

    def __len__(self) -> int:
        return len(self._waiters)

    async def wait(self, shelf: Shelf | None, joined: Callable[[], None]) -> Life | Leave:
        """Room, or a sandbox of the shelf. Cancelled: neither is taken."""
        waiter = _Waiter(shelf)
        self._waiters.append(waiter)
        if self._seeking is None:
            scope = anyio.CancelScope()
            self._seeking = scope, asyncio.create_task(self._seek(scope))
        joined()
        try:
            return await waiter.given
        except BaseException:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._stop_seeking()
            given = waiter.given
            if given.done() and not given.cancelled() and given.exception() is None:
                found = given.result()
                if not isinstance(found, Life):
                    found()
                elif shelf is not None:
                    self._put_back(shelf, found)
            raise

    def give(self, shelf: Shelf, life: Life) -> bool:
        """Give a sandbox to the first who can use it; False where there is nobody."""
        for waiter in self._waiters:
            if waiter.shelf is shelf and not waiter.given.done():
                self._waiters.remove(waiter)
                self._stop_seeking()
                waiter.given.set_result(life)
                return True
        return False

    def _stop_seeking(self) -> None:
        if not self._waiters and self._seeking is not None:
            self._seeking[0].cancel()
            self._seeking = None

    async def _seek(self, scope: anyio.CancelScope) -> None:
        with scope:
            while self._seeking is not None and self._seeking[0] is scope:
                try:
                    leave = await self._slots.acquire()
                except SandboxError as error:
                    self._fail(error)
                    return
                waiter = self._waiters.popleft() if self._waiters else None
                if not self._waiters:
                    self._seeking = None
                if waiter is None or waiter.given.done():
                    leave()
                else:
                    waiter.given.set_result(leave)

    def _fail(self, error: SandboxError) -> None:
        self._seeking = None
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.given.done():
                waiter.given.set_exception(error)
