"""The background event loop: the only thread in which sandboxkit runs coroutines."""

import asyncio
import os
import threading
from typing import Any

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
            _thread = threading.Thread(target=_loop.run_forever, name="sandboxkit", daemon=True)
            _thread.start()
        return _loop


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
    _lock, _loop, _thread = threading.Lock(), None, None


os.register_at_fork(after_in_child=_forget)
