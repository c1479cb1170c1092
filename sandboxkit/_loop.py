"""The background event loop: the only thread in which sandboxkit runs coroutines."""

import asyncio
import os
import socket
import threading
from typing import Any

from sandboxkit import _forks

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def get() -> asyncio.AbstractEventLoop:
    """Return the running background loop, starting it on first use.

    Our own thread rather than anyio's blocking portal: the portal's loop ends with a context
    manager and cannot be forgotten after a fork, this one lives as long as the process.
    """
    global _loop, _thread
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            _loop.set_exception_handler(_report)
            _thread = threading.Thread(target=_run, args=[_loop], name="sandboxkit", daemon=True)
            _thread.start()
        return _loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    # With a task of its own at the root anyio keeps its threads from one operation to the next, and
    # does not look through all tasks for one at each use of a thread.
    loop.run_until_complete(asyncio.Event().wait())


# Any: asyncio's own type for what it reports.
def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # anyio's wait for a unix socket is cancelled in the turn in which the socket gets ready:
    # its callback then finds its future done. Harmless, and not for the user's stderr.
    if not isinstance(context.get("exception"), asyncio.InvalidStateError):
        loop.default_exception_handler(context)


def is_current() -> bool:
    """Whether the caller runs on the background thread, where blocking would deadlock."""
    return threading.current_thread() is _thread


def _forget() -> None:
    # A forked child (DataLoader worker, torchrun) inherits the loop object but not its thread.
    global _lock, _loop, _thread
    if _loop is not None:
        _parents.append((_loop, asyncio.all_tasks(_loop)))
        _close(_loop)
    _lock, _loop, _thread = threading.Lock(), None, None


# Any: the results of tasks, which nobody looks at.
_parents: list[tuple[asyncio.AbstractEventLoop, set[asyncio.Task[Any]]]] = []
"""Kept: collected, they would run the `finally` of the parent's work in the child."""


def _close(loop: asyncio.AbstractEventLoop) -> None:
    # By number alone. loop.close() would unregister from the epoll set, which is the parent's.
    for name in ("_ssock", "_csock"):
        if isinstance(sock := getattr(loop, name, None), socket.socket):
            _forks.close(sock)
    epoll = getattr(getattr(loop, "_selector", None), "_selector", None)
    if epoll is not None:
        epoll.close()


os.register_at_fork(after_in_child=_forget)
