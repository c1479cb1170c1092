"""The background event loop: the only thread in which sandboxkit runs coroutines."""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any

from sandboxkit._life import _forks
from sandboxkit.errors import ConfigurationError, ProviderUnavailableError

_PARK_SECONDS = 1.0
_NO_THREAD = "can't start new thread"
"""The message of Python's RuntimeError when the system refuses a new thread."""
_lock = threading.RLock()  # reentrant: a finalizer may call get() while this thread holds it
_halted = False
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


class _SelectorLoop(asyncio.SelectorEventLoop):
    """A loop that wakes itself only where it may be asleep: each wake-up costs three system calls."""

    def call_soon_threadsafe(  # type: ignore[override]  # typeshed's type variables are not public
        self,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.Handle:
        # Not in a finalizer outside of tasks, which may run just before the loop falls asleep.
        if asyncio._get_running_loop() is self and asyncio.current_task(self) is not None:
            return self.call_soon(callback, *args, context=context)
        return super().call_soon_threadsafe(callback, *args, context=context)


def _new() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    if type(loop) is not asyncio.SelectorEventLoop:
        return loop  # another policy's, such as uvloop's
    loop.close()
    return _SelectorLoop()


def get() -> asyncio.AbstractEventLoop:
    """Return the running background loop, starting it on first use.

    Raises ConfigurationError under trio and at interpreter exit, and ProviderUnavailableError when
    the system refuses another thread.

    The loop has a thread of its own because anyio's blocking portal ends with a context manager
    and cannot be dropped after a fork. This loop lives as long as the process.
    """
    global _loop, _thread
    refuse_trio()
    if _halted:
        raise ConfigurationError(
            "the interpreter is exiting, and sandboxkit has shut down: no call can start; make it earlier, "
            "or in an atexit handler that is registered after 'import sandboxkit'"
        )
    with _lock:
        if _loop is None:
            loop = _new()
            loop.set_exception_handler(_report)
            thread = threading.Thread(target=_run, args=[loop], name="sandboxkit", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                loop.close()
                raise no_thread(error) or ConfigurationError(
                    f"sandboxkit needs a thread of its own ({error}): use it in Python's main "
                    "interpreter, and before that ends"
                ) from error
            _loop, _thread = loop, thread
        return _loop


def halted() -> bool:
    """Return whether the loop was halted because the interpreter exits."""
    return _halted


def halt(last: Callable[[], None]) -> None:
    """Run `last` on the loop and then park the loop for good, as the interpreter exits.

    The exit freezes the loop's thread anyway. `last` ends the pending operations, so that no
    thread waits for them for ever; later calls of `get` raise.
    """
    global _halted
    _halted = True
    if _loop is None:
        return
    parked = threading.Event()

    def park() -> None:
        last()
        parked.set()
        threading.Event().wait()

    _loop.call_soon_threadsafe(park)
    if not parked.wait(_PARK_SECONDS):  # the loop is blocked
        last()


def refuse_trio() -> None:
    """Raise ConfigurationError under trio, where operations cannot be awaited."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        raise ConfigurationError(
            "operations can be awaited under asyncio, not under trio: call sandboxkit in a thread, as in "
            "trio.to_thread.run_sync(lambda: session.run(argv).result())"
        )


def _run(loop: asyncio.AbstractEventLoop) -> None:
    # anyio asks sniffio, where it is installed, at each use; without a name it looks for the running task.
    if (sniffio := sys.modules.get("sniffio")) is not None:
        sniffio.thread_local.name = "asyncio"
    # With a root task, anyio keeps its worker threads between operations and does not search all
    # tasks for a root at each use of a thread.
    loop.run_until_complete(asyncio.Event().wait())


# Any: asyncio's own type for what it reports.
def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # When anyio's wait for a unix socket is cancelled just as the socket gets ready, its callback
    # finds the future done. This is harmless, so the user need not see it.
    if not isinstance(context.get("exception"), asyncio.InvalidStateError):
        loop.default_exception_handler(context)


def is_current() -> bool:
    """Return whether the caller runs on the background thread, where blocking would deadlock."""
    return threading.current_thread() is _thread


def _forget() -> None:
    # A forked child (DataLoader worker, torchrun) inherits the loop object but not its thread.
    global _lock, _loop, _thread
    if _loop is not None:
        _parents.append((_loop, asyncio.all_tasks(_loop)))
        _close(_loop)
    _lock, _loop, _thread = threading.RLock(), None, None


# Any: the results of tasks, which are never read.
_parents: list[tuple[asyncio.AbstractEventLoop, set[asyncio.Task[Any]]]] = []
"""The parent's loops and tasks, kept alive: if collected, they would run its `finally` blocks here."""


def _close(loop: asyncio.AbstractEventLoop) -> None:
    # Close only the descriptors: loop.close() would unregister from the epoll set shared with the parent.
    for name in ("_ssock", "_csock"):
        if isinstance(sock := getattr(loop, name, None), socket.socket):
            _forks.close(sock)
    epoll = getattr(getattr(loop, "_selector", None), "_selector", None)
    if epoll is not None:
        epoll.close()


os.register_at_fork(after_in_child=_forget)


def no_thread(error: RuntimeError) -> ProviderUnavailableError | None:
    """Return the error to raise instead if `error` means a refused thread, else None."""
    if str(error) != _NO_THREAD:
        return None
    return ProviderUnavailableError(
        "this machine, not the sandbox, cannot start another thread: it has reached a limit of processes "
        "and threads (ulimit -u, or the pids.max of a control group), or its memory is full; run fewer at a "
        "time, or raise the limit"
    )
