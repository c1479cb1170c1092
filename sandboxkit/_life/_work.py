"""Background work that continues when one of its waiters is cancelled."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

import anyio

from sandboxkit._life import _loop
from sandboxkit._operation import Operation


def start_detached(
    begin: Callable[[], asyncio.Task[None] | None], *, ended: bool = False
) -> Operation[None]:
    """Call `begin` on the background loop and wait for the task that it returns.

    Cancelling ends the wait only: the task starts and runs even if nothing waits for it. `ended`
    says that there is nothing to start; the call then succeeds even on a halted loop.
    """
    if ended and _loop.halted():
        return Operation._completed()
    tasks: list[asyncio.Task[None] | None] = []
    _loop.get().call_soon_threadsafe(lambda: tasks.append(begin()))

    async def wait() -> None:
        if tasks[0] is not None:
            await asyncio.shield(tasks[0])

    return Operation(wait())


@contextlib.contextmanager
def undone_if_interrupted(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` after a cancellation or Ctrl-C in the block.

    If that happens on entry to a context manager, its `__exit__` does not run.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException:
        undo()
        raise


def leaf_of(error: BaseException) -> BaseException:
    """Return the first error in nested groups that is no group itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class UndoneError(Exception):
    """The work was cancelled and has undone its effects."""


class Work:
    """A task on the background loop that is cancelled through a scope.

    Providers shield steps that must not be left half done. A shield holds against a scope, but
    not against `task.cancel()`.
    """

    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        self._scope = anyio.CancelScope()
        self.waiting = 0
        """How many callers wait for the work."""
        self._task = asyncio.create_task(self._drive(run))
        # Retrieve the error, or asyncio reports it as lost when no waiter is left.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def wait(self) -> None:
        """Wait until the work ends; the last waiter that gives up cancels it.

        Raises the work's error, or UndoneError if it was cancelled.
        """
        self.waiting += 1
        try:
            await asyncio.shield(self._task)
        finally:
            self.waiting -= 1
            if not self.waiting and not self._task.done():
                self._scope.cancel()

    def ended(self) -> asyncio.Task[None]:
        """Return a task that ends, without an error, when the work ends."""

        async def wait() -> None:
            await asyncio.wait([self._task])

        return asyncio.create_task(wait())

    def on_end(self, then: Callable[["Work"], object]) -> None:
        """Call `then` with the work when it ends."""
        self._task.add_done_callback(lambda _: then(self))

    def cancel(self) -> None:
        """Cancel the work, which then undoes its effects."""
        self._scope.cancel()

    async def undo(self) -> None:
        """Cancel the work and wait until it has ended."""
        self.cancel()
        await asyncio.wait([self._task])

    async def _drive(self, run: Callable[[], Awaitable[None]]) -> None:
        with self._scope:
            return await run()
        raise UndoneError
