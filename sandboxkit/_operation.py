"""Operation: one handle on work in progress, for threads and coroutines alike."""

import asyncio
import concurrent.futures
import time
from collections.abc import Coroutine, Generator, Iterator, Sequence
from typing import Any, TypeVar

import anyio

from sandboxkit import _loop

T = TypeVar("T")
# Any: wait() and as_completed() keep the caller's own Operation type, whatever it results in.
OpT = TypeVar("OpT", bound="Operation[Any]")


class Operation(concurrent.futures.Future[T]):
    """Work in progress on sandboxkit's background loop.

    It is a `concurrent.futures.Future` that can also be awaited: block with `.result()`, or
    `await` it under asyncio. `.result(timeout=)` expiring raises `TimeoutError` and leaves the
    work running; cancelling the operation, or the task that awaits it, cancels the work.
    """

    def __init__(self, coro: Coroutine[Any, Any, T]) -> None:
        super().__init__()
        self._background = _loop.get()
        self._scope: anyio.CancelScope | None = None
        self.add_done_callback(Operation._on_done)
        self._background.call_soon_threadsafe(self._start, coro)

    def result(self, timeout: float | None = None) -> T:
        """Block until the work is done and return its result, or raise its error."""
        self._refuse_deadlock()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Block until the work is done and return its error, or None."""
        self._refuse_deadlock()
        return super().exception(timeout)

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self).__await__()

    def _refuse_deadlock(self) -> None:
        if _loop.is_current() and not self.done():
            raise RuntimeError("result() would deadlock on the sandboxkit thread; use 'await'")

    def _start(self, coro: Coroutine[Any, Any, T]) -> None:
        if self.cancelled():
            coro.close()
            self.set_running_or_notify_cancel()  # wakes concurrent.futures.wait()
            return
        task = self._background.create_task(self._drive(coro))
        task.add_done_callback(self._finish)

    async def _drive(self, coro: Coroutine[Any, Any, T]) -> T:
        # Cancelled through a scope and not with task.cancel(): only a scope respects the
        # shields behind which providers finish what must not be left half done.
        with anyio.CancelScope() as self._scope:
            if self.cancelled():
                self._scope.cancel()
            return await coro
        raise asyncio.CancelledError

    def _finish(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.cancel()
        if not self.set_running_or_notify_cancel():
            if not task.cancelled():
                task.exception()  # the caller gave up on it: nobody else will retrieve it
            return
        if error := task.exception():
            self.set_exception(error)
        else:
            self.set_result(task.result())

    def _cancel_work(self) -> None:
        if self._scope is not None:  # else _drive has yet to look
            self._scope.cancel()

    @staticmethod
    def _on_done(op: "concurrent.futures.Future[T]") -> None:
        # Through the loop, so that it runs after _start whatever thread cancelled.
        assert isinstance(op, Operation)
        if op.cancelled():
            op._background.call_soon_threadsafe(op._cancel_work)


def wait(
    operations: Sequence[OpT], *, num_returns: int = 1, timeout: float | None = None
) -> tuple[list[OpT], list[OpT]]:
    """Block until `num_returns` operations are done; return (done, pending) in input order.

    At most `num_returns` are in `done`; fewer when `timeout` seconds pass first. An
    operation's own error is not raised here. Made for drain loops over `pending`.
    """
    if num_returns < 1:
        raise ValueError(f"num_returns must be at least 1, not {num_returns}")
    deadline = None if timeout is None else time.monotonic() + timeout
    unique = list(dict.fromkeys(operations))
    done: set[OpT] = set()
    while len(done) < min(num_returns, len(unique)):
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        waiting = [op for op in unique if op not in done]
        ready, _ = concurrent.futures.wait(waiting, left, concurrent.futures.FIRST_COMPLETED)
        if not ready:
            break
        done.update([op for op in waiting if op in ready][: num_returns - len(done)])
    return [op for op in unique if op in done], [op for op in unique if op not in done]


def as_completed(operations: Sequence[OpT], *, timeout: float | None = None) -> Iterator[OpT]:
    """Yield operations as they finish. Raises TimeoutError after `timeout` seconds."""
    yield from concurrent.futures.as_completed(operations, timeout)  # type: ignore[misc] # typed as Future
