"""The listening socket of an emulator."""

import socket


def listening() -> socket.socket:
    """Return a listening socket on a free loopback port."""
    # IPPROTO_TCP is given explicitly: only then does asyncio set TCP_NODELAY, as the real servers do.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(512)
    return listener
