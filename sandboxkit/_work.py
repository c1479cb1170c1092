"""Work that outlives a waiter: until the last of them has given up, or in any case."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio

from sandboxkit import _loop
from sandboxkit._operation import Operation


def begun(begin: Callable[[], asyncio.Task[None] | None]) -> Operation[None]:
    """Wait for what `begin` starts on the background loop.

    Cancelling ends the waiting only: it starts even if nobody waits by then.
    """
    tasks: list[asyncio.Task[None] | None] = []
    _loop.get().call_soon_threadsafe(lambda: tasks.append(begin()))

    async def wait() -> None:
        if tasks[0] is not None:
            await asyncio.shield(tasks[0])

    return Operation(wait())


class UndoneError(Exception):
    """The work was cancelled, and has undone what it did."""


class Work:
    """A task of the background loop that is cancelled through a scope.

    A provider's shields, behind which it finishes what must not be left half done, hold against
    scopes and not against `task.cancel()`.
    """

    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        self._scope = anyio.CancelScope()
        self._waiting = 0
        self._task = asyncio.create_task(self._drive(run))
        # Whoever waits sees its error; nobody may be waiting any more.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    @property
    def waited_for(self) -> bool:
        """Whether anybody waits for it."""
        return self._waiting > 0

    async def wait(self) -> None:
        """Wait for its end. Raises its error, UndoneError where it was cancelled."""
        self._waiting += 1
        try:
            await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if not self._waiting and not self._task.done():
                self._scope.cancel()

    async def undo(self) -> None:
        """Cancel it and wait until it has ended."""
        self._scope.cancel()
        await asyncio.wait([self._task])

    async def _drive(self, run: Callable[[], Awaitable[None]]) -> None:
        with self._scope:
            return await run()
        raise UndoneError
