"""Interpreter exit and SIGTERM: open sessions are closed and unfinished operations end."""

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Protocol

from sandboxkit._life import _loop
from sandboxkit._operation import Operation, end_unfinished, settle_callbacks

_EXIT_SECONDS = 30.0
_RELEASE_SECONDS = 2.0
"""Minimum time (s) for a provider to release its connections, however long the sessions took."""
_CALLBACK_SECONDS = 5.0
_SETTLE_SECONDS = 1.0
"""How long (s) interpreter exit waits for extension modules' threads to leave Python code."""


class Backend(Protocol):
    """A provider object passed to a session by its caller; no session closes it."""

    async def aclose(self) -> None:
        """Release the provider's connections."""
        ...


class Closable(Protocol):
    """A session, or another object that must be closed before the interpreter exits."""

    def close(self) -> Operation[None]:
        """Begin to close the object."""
        ...


_log = logging.getLogger("sandboxkit")
_open: "weakref.WeakSet[Closable]" = weakref.WeakSet()
_backends: "weakref.WeakSet[Backend]" = weakref.WeakSet()
_used = False
_abandoned = False


def register(closable: Closable) -> None:
    """Close `closable` at interpreter exit unless it is closed earlier."""
    global _used
    _used = True
    _open.add(closable)
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        with contextlib.suppress(ValueError):  # the main thread of a subinterpreter
            signal.signal(signal.SIGTERM, terminate)


def register_backend(backend: Backend) -> None:
    """Close `backend` at interpreter exit, after all sessions."""
    _backends.add(backend)


def forget(closable: Closable) -> None:
    """Unregister an object that is closed."""
    _open.discard(closable)


def abandon() -> None:
    """Skip all closing at exit, as after a second Ctrl-C. Undetached sandboxes end with the process."""
    global _abandoned
    _abandoned = True


def _close_all() -> None:
    try:
        deadline = time.monotonic() + _EXIT_SECONDS
        closing: list[tuple[Closable, Operation[None]]] = []
        for closable in [] if _abandoned else list(_open):
            with _errors_logged(closable):
                closing.append((closable, closable.close()))
        for closable, operation in closing:
            with _errors_logged(closable):
                operation.result(max(0.0, deadline - time.monotonic()))
        _open.clear()
        backends = [] if _abandoned else list(_backends)
        for backend, releasing in [(each, Operation(each.aclose())) for each in backends]:
            with _errors_logged(backend):
                releasing.result(max(_RELEASE_SECONDS, deadline - time.monotonic()))
        _backends.clear()
    finally:
        if _used:
            _await_foreign_threads()


@contextlib.contextmanager
def _errors_logged(closable: object) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - log it and go on closing the others
        errors = error.exceptions if isinstance(error, ExceptionGroup) else [error]
        _log.error(
            "%s was not closed at interpreter exit: %s; 'sandboxkit ls' shows what is left of it",
            closable,
            ", ".join(f"{type(each).__name__} {each}".rstrip() for each in errors),
        )


def _end() -> None:
    # Close what atexit handlers opened meanwhile. The handlers still to run registered before us.
    _close_all()
    if not settle_callbacks(_CALLBACK_SECONDS):
        _log.error("a done-callback still runs at interpreter exit, and is abandoned")
    _loop.halt(end_unfinished)


def _await_foreign_threads() -> None:
    # Before Python 3.14 the interpreter crashes if an extension module's thread is in Python code
    # while it exits. pyqwest, which E2B's SDK uses, delivers each response in such a thread; the
    # thread may still be returning when the program has the response and exits.
    deadline = time.monotonic() + _SETTLE_SECONDS
    calm = 0
    while calm < 3 and time.monotonic() < deadline:
        python_threads = {thread.ident for thread in threading.enumerate()}
        calm = 0 if sys._current_frames().keys() - python_threads else calm + 1
        time.sleep(0.001)


def terminate(signum: int, frame: object) -> None:
    """Handle a signal: exit with the status that a shell gives it."""
    raise SystemExit(128 + signum)


def _after_fork() -> None:
    global _open, _backends
    # Open sessions belong to the parent: the child neither closes them nor waits for them.
    _open, _backends = weakref.WeakSet(), weakref.WeakSet()


os.register_at_fork(after_in_child=_after_fork)
# atexit runs too late: no thread can be started by then, and closing a session needs threads.
# concurrent.futures uses this private hook too.
threading._register_atexit(_close_all)  # type: ignore[attr-defined] # private, see above
atexit.register(_end)
