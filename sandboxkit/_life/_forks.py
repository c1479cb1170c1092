"""Fork safety: a child closes its parent's connections and cannot use its parent's objects.

A forked child has copies of all objects but none of the threads that work on them, so it would
wait for the background loop for ever. An inherited descriptor also keeps a connection open whose
end should tell the backend that the parent is gone. Therefore each object records its process,
and the child closes these connections.
"""

import os
import socket
import weakref
from asyncio.trsock import TransportSocket

from sandboxkit.errors import ConfigurationError

_sockets: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


def close_in_forks(sock: socket.socket | TransportSocket) -> None:
    """Close a connection in every child that this process forks; the parent's stays open.

    Use it for a connection whose end tells the backend that its client is gone: a child that holds
    it open would let a sandbox outlive the parent. Call it as soon as the socket exists. The socket
    is referenced weakly; closing it earlier or registering it twice does no harm.
    """
    # asyncio's wrapper, which get_extra_info("socket") returns, has no close of its own.
    wrapped = isinstance(sock, TransportSocket)
    _sockets.add(sock._sock if wrapped else sock)  # type: ignore[union-attr,arg-type] # private


def close(sock: socket.socket) -> None:
    """Close a parent's socket in its child and detach the descriptor from the object.

    A later close of the object would otherwise close a reused descriptor. Nothing is unregistered
    from epoll: the child shares the parent's epoll set, which the parent still needs.
    """
    number = sock.detach()
    if number >= 0:
        os.close(number)


def refuse(pid: int, what: str, remedy: str) -> None:
    """Raise ConfigurationError if `what` belongs to another process, `pid`."""
    if os.getpid() != pid:
        raise ConfigurationError(
            f"{what} belongs to process {pid}, not to this fork of it: {remedy}"
        )


def _close_all() -> None:
    for sock in list(_sockets):
        close(sock)
    _sockets.clear()


os.register_at_fork(after_in_child=_close_all)
