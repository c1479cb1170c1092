"""Interpreter exit and signals: what is still open then is closed."""

import os
import signal
import sys
import threading
import time
import weakref
from typing import Protocol

from sandboxkit._operation import Operation

_EXIT_SECONDS = 30.0
_SETTLE_SECONDS = 1.0
"""How long the threads of extension modules may stay in Python code at interpreter exit."""


class Closable(Protocol):
    """A session, or whatever else must not be left open."""

    def close(self) -> Operation[None]:
        """Begin to close it."""
        ...


_open: "weakref.WeakSet[Closable]" = weakref.WeakSet()
_installed = False
_abandoned = False


def register(closable: Closable) -> None:
    """Close this at interpreter exit if nobody did before."""
    global _installed
    _open.add(closable)
    if not _installed:
        _installed = True
        # atexit proper is too late: by then threads can no longer be started, and closing a
        # session needs them. This private hook is the one concurrent.futures itself uses.
        threading._register_atexit(_close_all)  # type: ignore[attr-defined] # private, see above
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def forget(closable: Closable) -> None:
    """It is closed."""
    _open.discard(closable)


def abandon() -> None:
    """A second Ctrl-C: leave at once. Sandboxes that are not detached end with this process."""
    global _abandoned
    _abandoned = True


def _close_all() -> None:
    try:
        if not _abandoned:
            for operation in [closable.close() for closable in list(_open)]:
                operation.result(_EXIT_SECONDS)
    finally:
        _await_foreign_threads()


def _await_foreign_threads() -> None:
    # A thread of an extension module that is in Python code while the interpreter ends crashes
    # it (before Python 3.14). pyqwest, on which E2B's SDK stands, hands over each answer in such
    # a thread, which may not have returned when the program has the answer and ends.
    deadline = time.monotonic() + _SETTLE_SECONDS
    calm = 0
    while calm < 3 and time.monotonic() < deadline:
        python_threads = {thread.ident for thread in threading.enumerate()}
        calm = 0 if sys._current_frames().keys() - python_threads else calm + 1
        time.sleep(0.001)


def _terminate(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)


def _after_fork() -> None:
    global _open, _installed
    # What is open is the parent's: the child neither closes it nor waits for it.
    _open, _installed = weakref.WeakSet(), False


os.register_at_fork(after_in_child=_after_fork)
