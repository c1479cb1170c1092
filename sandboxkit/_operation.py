"""Operation: a handle on work in progress, for both threads and coroutines."""

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import os
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import anyio

from sandboxkit._calls import _arguments
from sandboxkit._calls._arguments import NoValueYet, brief, explained_call
from sandboxkit._calls._foreign_names import foreign_names
from sandboxkit._life import _loop
from sandboxkit._life._loop import no_thread
from sandboxkit.display import Displayable
from sandboxkit.errors import ConfigurationError

T = TypeVar("T")
# Any: wait() and as_completed() keep the caller's own Operation type, whatever it results in.
OpT = TypeVar("OpT", bound="Operation[Any]")

_log = logging.getLogger("sandboxkit")
_NAMED = 5
"""How many operations a message names at most."""
_RUNNERS = ("asyncio.runners", "asyncio.base_events")
_REMEDY = (
    "an operation can be awaited but is no coroutine: write 'async def main(): return await operation' "
    "and asyncio.run(main()), asyncio.ensure_future(operation) for a task, or operation.result() without asyncio"
)
INTERRUPTED_SECONDS = 5.0
"""How long (s) an interrupted caller waits at most for its work to be undone."""


@foreign_names
class Operation(NoValueYet, concurrent.futures.Future[T], Displayable):
    """Work in progress on sandboxkit's background loop.

    It is a `concurrent.futures.Future` that can also be awaited. Block with `.result()`, or `await`
    it under asyncio, where `.result()` warns that it blocks the event loop. `.result(timeout=)`
    raises `TimeoutError` when it expires and leaves the work running. Cancelling the operation, or
    the task that awaits it, cancels the work. Ctrl-C in `.result()`, or interrupting a notebook
    cell, cancels it too; KeyboardInterrupt is raised once the work has ended, or after five
    seconds. Interrupting `wait()` or `as_completed()` leaves the work running.

    If the work fails and its result is never retrieved, the logger "sandboxkit" reports the error when
    the operation is garbage-collected.
    """

    _unread: str | None = None  # the error, until a caller retrieves it
    _own_callbacks, _of = 1, None

    def __init__(
        self,
        coro: Coroutine[Any, Any, T],
        *,
        lost: Callable[[], None] | None = None,
        of: Any = None,  # Any: a Lifecycle, whose module imports this one
        title: str = "",
    ) -> None:
        """`lost` is called if the work succeeds just as the operation is cancelled, so nobody gets its
        result. `of` is the sandbox that the operation uses: `repr` describes it while the operation is
        pending, and failures are not logged once it is stopped. `title` names the call in messages.
        """
        super().__init__()
        self._pid = os.getpid()
        self._lost, self._of, self._name = lost, of, title
        try:
            self._background = _loop.get()
        except BaseException:
            coro.close()  # avoids Python's "never awaited" warning
            raise
        self._scope: anyio.CancelScope | None = None
        # Set when the work ends, if a caller waits for that.
        self._over: threading.Event | None = None
        _unfinished.add(self)
        super().add_done_callback(Operation._on_done)
        self._background.call_soon_threadsafe(self._start, coro)

    def __repr__(self) -> str:
        # asyncio quotes the repr where it refuses an operation: before Python 3.14 it runs only coroutines.
        refused = sys._getframe(1).f_globals.get("__name__") in _RUNNERS
        if self._of is None or self.done():
            text = super().__repr__()
        else:
            text = f"<{self._title()} pending: sandbox {self._of.describe()}>"
        return f"{text}: {_REMEDY}" if refused else text

    def _title(self) -> str:
        return self._name or type(self).__name__

    def _no_value(self) -> str:
        return f"{self._name or 'this'} is an operation, not its result yet: use its result(), or await it"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled or copied: send its result()")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError; the message says where the result is."""
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}: {self._no_value()}",
                name=name,
                obj=self,
            )

    def _is_dropped(self) -> bool:
        """Whether nobody waits for the work, or can: the end of its sandbox cancels it."""
        # Any: private attributes of concurrent.futures, as in _end_in_child.
        future: Any = self
        waited = len(future._done_callbacks) > self._own_callbacks or future._condition._waiters
        ours = any(self in waiter.operations for waiter in tuple(_waiters))
        return not (waited or ours or future._waiters or self.done())

    def _is_stopped(self) -> bool:
        return self._of is not None and self._of.stopped

    def result(self, timeout: float | None = None) -> T:
        """Block until the work is done and return its result, or raise its error.

        Raises TimeoutError after `timeout` seconds; the work goes on.
        """
        if self.done():
            self._unread = None
            return super().result(_arguments.patience(timeout))
        _may_block("result")
        with self._marked_as_read():
            return super().result(_arguments.patience(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Block until the work is done and return its error, or None.

        Raises TimeoutError after `timeout` seconds; the work goes on.
        """
        if not self.done():
            _may_block("exception")
        with self._marked_as_read():
            return super().exception(_arguments.patience(timeout))

    # Any: concurrent.futures' own type for what a callback returns.
    def add_done_callback(self, fn: "Callable[[concurrent.futures.Future[T]], Any]") -> None:
        """Call `fn` with the operation once it is done, in a thread reserved for callbacks.

        Callbacks run one at a time, in the order in which operations end. A callback that blocks
        delays other callbacks but no sandbox call. Its errors are logged.
        """
        if getattr(fn, "__module__", None) == "asyncio.futures":
            super().add_done_callback(fn)  # only wakes the awaiting event loop
        else:
            _callbacks.start()
            super().add_done_callback(lambda op: _callbacks.queue.put((fn, op)))

    def __iter__(self) -> NoReturn:
        """Raise ConfigurationError: an operation is not its result."""
        self._refuse_use()

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self).__await__()

    def __del__(self) -> None:
        if self._unread is not None and self._pid == os.getpid():
            _log.warning(
                "%s; this result was never collected: call result() or await it", self._unread
            )

    def _start(self, coro: Coroutine[Any, Any, T]) -> None:
        if self.cancelled():
            coro.close()
            self.set_running_or_notify_cancel()  # wakes concurrent.futures.wait()
            self._signal_end()
            return
        task = self._background.create_task(self._drive(coro))
        task.add_done_callback(self._finish)

    async def _drive(self, coro: Coroutine[Any, Any, T]) -> None:
        results: list[T] = []
        # Cancel through a scope, not task.cancel(): only a scope respects the shields behind
        # which providers finish steps that must not be left half done.
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
        # Set the result here: the task's done callback runs one loop iteration later.
        if self.set_running_or_notify_cancel():
            self.set_result(results[0])
        elif self._lost is not None:
            self._lost()

    def _finish(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self.cancel()
            self.set_running_or_notify_cancel()
        elif (error := task.exception()) and self.set_running_or_notify_cancel():
            # Otherwise the caller cancelled: nobody will retrieve the error.
            if not self._is_stopped():
                self._unread = f"{type(error).__name__}: {error}"
            self.set_exception(brief(error))
        self._signal_end()

    # Any: the return value is ignored.
    def _on_end(self, then: Callable[[], Any]) -> None:
        self._own_callbacks += 1
        super().add_done_callback(lambda _: self._background.call_soon_threadsafe(then))

    def _signal_end(self) -> None:
        if self._over is not None:
            self._over.set()

    @contextlib.contextmanager
    def _marked_as_read(self) -> Iterator[None]:
        try:
            with self._ended_if_interrupted():
                yield
        finally:
            if self.done():
                self._unread = None

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
        if self._scope is not None:  # otherwise _drive checks cancelled() when it starts
            self._scope.cancel()

    @staticmethod
    def _completed() -> "Operation[None]":
        operation: Operation[None] = Operation.__new__(Operation)
        concurrent.futures.Future.__init__(operation)
        operation.set_result(None)
        return operation

    def _end_in_child(self) -> None:
        self._condition = threading.Condition()
        self._waiters.clear()
        self._done_callbacks.clear()  # type: ignore[attr-defined] # private, as are the others
        self._end_with(
            f"this operation belongs to process {os.getppid()}, which was forked: it cannot complete here; "
            "start a new one in this process"
        )

    def _end_with(self, message: str) -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # already done
            self.set_exception(ConfigurationError(message))

    @staticmethod
    def _on_done(op: "concurrent.futures.Future[T]") -> None:
        # Via the loop, so that it runs after _start whichever thread cancelled.
        assert isinstance(op, Operation)
        _unfinished.discard(op)
        for waiter in tuple(_waiters):
            if op in waiter.operations:
                waiter.finished.put(op)
        if op.cancelled():
            op._background.call_soon_threadsafe(op._cancel_work)


class _Callbacks:
    """A thread that runs the callers' done-callbacks."""

    def __init__(self) -> None:
        # Any: callbacks and operations of any kind.
        self.queue: queue.SimpleQueue[tuple[Callable[[Any], Any], Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread if it does not run yet."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="sandboxkit-callbacks", daemon=True
            )
            self._thread.start()

    def settle(self, seconds: float) -> bool:
        """Wait up to `seconds` for the queued callbacks; return whether all have run."""
        settled = threading.Event()
        self.queue.put((lambda _: settled.set(), None))
        return self._thread is None or settled.wait(seconds)

    def _run(self) -> None:
        while True:
            fn, op = self.queue.get()
            try:
                fn(op)
            except BaseException:  # noqa: BLE001 - an error in the caller's code must not end the thread
                _log.exception("a done-callback of %r failed", op)
            del fn, op


_callbacks = _Callbacks()


def _end_in_child() -> None:
    global _callbacks
    _callbacks = _Callbacks()
    # Nothing works on these in a forked child, and a thread of the parent may hold their locks.
    for op in tuple(_unfinished):
        op._end_in_child()
    _unfinished.clear()
    _waiters.clear()


os.register_at_fork(after_in_child=_end_in_child)


def end_unfinished() -> None:
    """Fail all unfinished operations with ConfigurationError, as the interpreter exits."""
    for op in tuple(_unfinished):
        op._end_with("the interpreter exited before this operation ended; wait for it earlier")


# Any: Lifecycles, whose module imports this one.
def name_dropped(ends: Callable[[Any], bool], error: type[BaseException] | None) -> None:
    """Warn of calls that the end of a `with` block cancels before they began, unless an error ends the block.

    `ends` tells whether the end of the block stops a sandbox.
    """
    dropped = [op for op in tuple(_unfinished) if op._of and ends(op._of) and op._is_dropped()]
    if dropped and error is None:
        names = ", ".join(op._title() for op in dropped[:_NAMED])
        more = f" and {len(dropped) - _NAMED} more" if len(dropped) > _NAMED else ""
        _log.warning(
            "the 'with' block ends before %s%s, which it cancels: call result() or await them inside the block",
            names,
            more,
        )


def settle_callbacks(seconds: float) -> bool:
    """Wait up to `seconds` for the callbacks of ended operations; return whether all have run."""
    return _callbacks.settle(seconds)


class _Waiter(Generic[OpT]):
    """A blocked call of wait(): its operations, and a queue of those that have finished."""

    def __init__(self, operations: Collection[OpT]) -> None:
        self.operations = operations
        self.finished: queue.SimpleQueue[OpT] = queue.SimpleQueue()


# Both sets change by single operations that are atomic in every thread. An operation stays in
# _unfinished until it is done, so wait() needs one look-up for it instead of a costly callback.
_unfinished: set[Operation[Any]] = set()
_waiters: set[_Waiter[Any]] = set()


@explained_call
def wait(
    operations: Iterable[OpT], *, num_returns: int = 1, timeout: float | None = None
) -> tuple[list[OpT], list[OpT]]:
    """Block until `num_returns` operations are done; return (done, pending) in input order.

    `done` has at most `num_returns` operations, and fewer when `timeout` seconds pass first. Errors
    of operations are not raised here. Use it in drain loops over `pending`. Each call scans the whole
    list; for tens of thousands of operations use `as_completed`, which scans it once.
    """
    pending = _unique(operations)
    wanted = min(_arguments.integer("num_returns", num_returns), len(pending))
    patience = _arguments.patience(timeout)
    deadline = None if patience is None else time.monotonic() + patience
    waiter = _Waiter(pending)
    _waiters.add(waiter)
    try:
        ready = itertools.filterfalse(_unfinished.__contains__, pending)
        done = set(itertools.islice(ready, wanted))
        while len(done) < wanted:
            _may_block("wait")
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            done.add(waiter.finished.get(timeout=left))
    except queue.Empty:
        # Some may be done by now, with callbacks that have yet to run.
        done = set(itertools.islice(filter(Operation.done, pending), wanted))
    finally:
        _waiters.discard(waiter)
    finished = [op for op in pending if op in done] if len(done) > 1 else list(done)
    for op in finished:
        del pending[op]
    return finished, list(pending)


@explained_call
def as_completed(operations: Iterable[OpT], *, timeout: float | None = None) -> Iterator[OpT]:
    """Yield operations as they finish. Raises TimeoutError after `timeout` seconds."""
    left = _unique(operations)
    if not all(map(Operation.done, left)):
        _may_block("as_completed")
    # Any: typeshed declares Futures, but the function yields the operations it was given.
    found: Any = concurrent.futures.as_completed(left, _arguments.patience(timeout))
    return iter(found)


def _may_block(name: str) -> None:
    if _loop.is_current():
        raise RuntimeError(f"{name}() would deadlock on the sandboxkit thread; use 'await'")
    # A notebook may run its event loop in the thread that runs the cells: do not warn there.
    if asyncio._get_running_loop() is not None and not hasattr(sys, "ps1"):
        frame, level = sys._getframe(1), 2
        while frame.f_back and frame.f_globals.get("__name__", "").startswith("sandboxkit."):
            frame, level = frame.f_back, level + 1
        warnings.warn(
            f"{name}() blocks this thread's event loop, and everything that runs on it; use 'await', "
            "'async for' and 'async with', or asyncio.to_thread(...) for code that blocks",
            RuntimeWarning,
            stacklevel=level,
        )


def _unique(operations: Iterable[OpT]) -> dict[OpT, None]:
    remedy = "a list of operations, as exec() and the other calls return them"
    if not isinstance(operations, Iterable) or isinstance(operations, str | bytes | Operation):
        _arguments.refuse("operations", operations, remedy)
    given = list(operations)
    for kind in set(map(type, given)):
        if not issubclass(kind, Operation):
            wrong = next(each for each in given if type(each) is kind)
            _arguments.refuse("operations", [wrong], remedy)
    return dict.fromkeys(given)
