"""Operation: one handle on work in progress, for threads and coroutines alike."""

import asyncio
import concurrent.futures
import contextlib
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Iterator
from typing import Any, Generic, TypeVar

import anyio

from sandboxkit import _arguments, _loop
from sandboxkit._threads import no_thread
from sandboxkit.display import Shown
from sandboxkit.errors import ConfigurationError

T = TypeVar("T")
# Any: wait() and as_completed() keep the caller's own Operation type, whatever it results in.
OpT = TypeVar("OpT", bound="Operation[Any]")

INTERRUPTED_SECONDS = 5.0
"""How long an interrupted caller waits for its work to be undone, at most."""


class Operation(concurrent.futures.Future[T], Shown):
    """Work in progress on sandboxkit's background loop.

    It is a `concurrent.futures.Future` that can also be awaited: block with `.result()`, or
    `await` it under asyncio. `.result(timeout=)` expiring raises `TimeoutError` and leaves the
    work running; cancelling the operation, or the task that awaits it, cancels the work. So does
    Ctrl-C in `.result()`, or the interruption of a notebook's cell: KeyboardInterrupt goes on once
    the work has ended, or after five seconds. `wait()` and `as_completed()` leave it running.
    """

    def __init__(
        self, coro: Coroutine[Any, Any, T], *, lost: Callable[[], None] | None = None
    ) -> None:
        """`lost` is called where the work came to its end as the operation was cancelled."""
        super().__init__()
        self._lost = lost
        self._background = _loop.get()
        self._scope: anyio.CancelScope | None = None
        self._over: threading.Event | None = None  # set at the end of the work, if anybody waits
        _unfinished.add(self)
        self.add_done_callback(Operation._on_done)
        self._background.call_soon_threadsafe(self._start, coro)

    def result(self, timeout: float | None = None) -> T:
        """Block until the work is done and return its result, or raise its error."""
        if not self.done():
            _refuse_deadlock("result")
        with self._ended_if_interrupted():
            return super().result(_arguments.patience(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Block until the work is done and return its error, or None."""
        if not self.done():
            _refuse_deadlock("exception")
        with self._ended_if_interrupted():
            return super().exception(_arguments.patience(timeout))

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self).__await__()

    def _start(self, coro: Coroutine[Any, Any, T]) -> None:
        if self.cancelled():
            coro.close()
            self.set_running_or_notify_cancel()  # wakes concurrent.futures.wait()
            self._tell_over()
            return
        task = self._background.create_task(self._drive(coro))
        task.add_done_callback(self._finish)

    async def _drive(self, coro: Coroutine[Any, Any, T]) -> None:
        results: list[T] = []
        # Cancelled through a scope and not with task.cancel(): only a scope respects the
        # shields behind which providers finish what must not be left half done.
        with anyio.CancelScope() as self._scope:
            if self.cancelled():
                self._scope.cancel()
            try:
                results.append(await coro)
            except RuntimeError as error:
                if (lacking := no_thread(error)) is None:
                    raise
                raise lacking from error
        if not results:
            raise asyncio.CancelledError
        # Here and not when the task is done, which is heard of a round of the loop later.
        if self.set_running_or_notify_cancel():
            self.set_result(results[0])
        elif self._lost is not None:
            self._lost()

    def _finish(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self.cancel()
            self.set_running_or_notify_cancel()
        elif (error := task.exception()) and self.set_running_or_notify_cancel():
            # Else the caller gave up on it: nobody will retrieve its error.
            self.set_exception(error)
        self._tell_over()

    def _tell_over(self) -> None:
        if self._over is not None:
            self._over.set()

    @contextlib.contextmanager
    def _ended_if_interrupted(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self._over = threading.Event()
            if not self.done() and self.cancel():
                self._over.wait(INTERRUPTED_SECONDS)
            raise

    def _cancel_work(self) -> None:
        if self._scope is not None:  # else _drive has yet to look
            self._scope.cancel()

    def _end_in_child(self) -> None:
        self._condition = threading.Condition()
        self._waiters.clear()
        self._done_callbacks.clear()  # type: ignore[attr-defined] # private, as are the others
        if not self.done():
            self.set_exception(
                ConfigurationError(
                    f"this operation belongs to process {os.getppid()}, which was forked: "
                    "nobody works on it here; begin one of this process's own"
                )
            )

    @staticmethod
    def _on_done(op: "concurrent.futures.Future[T]") -> None:
        # Through the loop, so that it runs after _start whatever thread cancelled.
        assert isinstance(op, Operation)
        _unfinished.discard(op)
        for waiter in tuple(_waiters):
            if op in waiter.operations:
                waiter.finished.put(op)
        if op.cancelled():
            op._background.call_soon_threadsafe(op._cancel_work)


def _end_in_child() -> None:
    # Nobody works on these in a forked child, and a thread of the parent may hold their locks.
    for op in tuple(_unfinished):
        op._end_in_child()
    _unfinished.clear()
    _waiters.clear()


os.register_at_fork(after_in_child=_end_in_child)


class _Waiter(Generic[OpT]):
    """Somebody who blocks in wait(), and what has finished meanwhile of what is waited for."""

    def __init__(self, operations: Collection[OpT]) -> None:
        self.operations = operations
        self.finished: queue.SimpleQueue[OpT] = queue.SimpleQueue()


# Both change by single steps that are atomic in any thread. An operation is in the first until
# it is done, so that one that is not costs wait() a look-up; a callback on each would be dear.
_unfinished: set[Operation[Any]] = set()
_waiters: set[_Waiter[Any]] = set()


def wait(
    operations: Iterable[OpT], *, num_returns: int = 1, timeout: float | None = None
) -> tuple[list[OpT], list[OpT]]:
    """Block until `num_returns` operations are done; return (done, pending) in input order.

    At most `num_returns` are in `done`; fewer when `timeout` seconds pass first. An
    operation's own error is not raised here. Made for drain loops over `pending`, of which each
    call reads the whole list; for tens of thousands of operations `as_completed` reads it once.
    """
    pending = _unique(operations)
    wanted = min(_arguments.whole("num_returns", num_returns), len(pending))
    patience = _arguments.patience(timeout)
    deadline = None if patience is None else time.monotonic() + patience
    waiter = _Waiter(pending)
    _waiters.add(waiter)
    try:
        ready = itertools.filterfalse(_unfinished.__contains__, pending)
        done = set(itertools.islice(ready, wanted))
        while len(done) < wanted:
            _refuse_deadlock("wait")
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            done.add(waiter.finished.get(timeout=left))
    except queue.Empty:
        # Done since, or so lately that its callbacks are still to run.
        done = set(itertools.islice(filter(Operation.done, pending), wanted))
    finally:
        _waiters.discard(waiter)
    finished = [op for op in pending if op in done] if len(done) > 1 else list(done)
    for op in finished:
        del pending[op]
    return finished, list(pending)


def as_completed(operations: Iterable[OpT], *, timeout: float | None = None) -> Iterator[OpT]:
    """Yield operations as they finish. Raises TimeoutError after `timeout` seconds."""
    left = _unique(operations)
    # Any: typed as an iterator of Futures, it yields what it was given.
    found: Any = concurrent.futures.as_completed(left, _arguments.patience(timeout))
    return iter(found)


def _refuse_deadlock(name: str) -> None:
    if _loop.is_current():
        raise RuntimeError(f"{name}() would deadlock on the sandboxkit thread; use 'await'")


def _unique(operations: Iterable[OpT]) -> dict[OpT, None]:
    remedy = "a list of operations, as exec() and the other calls return them"
    if not isinstance(operations, Iterable) or isinstance(operations, str | bytes):
        _arguments.refuse("operations", operations, remedy)
    given = list(operations)
    for kind in set(map(type, given)):
        if not issubclass(kind, Operation):
            wrong = next(each for each in given if type(each) is kind)
            _arguments.refuse("operations", [wrong], remedy)
    return dict.fromkeys(given)
