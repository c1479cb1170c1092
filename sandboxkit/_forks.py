"""Forks: what a child closes of its parent's, and what it hears when it uses the rest.

A forked child has copies of every object and none of the threads that work on them. What waits
for the background loop would wait for ever, and an inherited descriptor keeps a connection open
whose end was to tell the backend that the parent is gone. So each object knows the process it
belongs to, and each such connection is closed in the child.
"""

import os
import socket
import weakref
from asyncio.trsock import TransportSocket

from sandboxkit.errors import ConfigurationError

_sockets: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


def close_in_forks(sock: socket.socket | TransportSocket) -> None:
    """Close a connection in every child that this process forks; the parent's stays open.

    For a connection whose end tells the backend that its client is gone: as long as a child
    held it open, a sandbox would outlive the parent. Kept weakly; closing it earlier or naming
    it twice does no harm. Call it as soon as the socket exists.
    """
    # asyncio's wrapper, which get_extra_info("socket") returns, has no close of its own.
    if isinstance(sock, TransportSocket):
        _sockets.add(sock._sock)  # type: ignore[attr-defined] # private, see above
    else:
        _sockets.add(sock)


def close(sock: socket.socket) -> None:
    """Close a parent's socket in its child, and leave the object without a number.

    Else the object's own end would close the number again, somebody else's by then. Nothing is
    unregistered: the child shares its parent's epoll set, which the parent still needs.
    """
    number = sock.detach()
    if number >= 0:
        os.close(number)


def refuse(pid: int, what: str, remedy: str) -> None:
    """Raise ConfigurationError where `pid`, to which `what` belongs, is not this process."""
    if os.getpid() != pid:
        raise ConfigurationError(
            f"{what} belongs to process {pid}, not to this fork of it: {remedy}"
        )


def _close_all() -> None:
    for sock in list(_sockets):
        close(sock)
    _sockets.clear()


os.register_at_fork(after_in_child=_close_all)
