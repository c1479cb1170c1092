"""Where an emulator listens."""

import socket


def listening() -> socket.socket:
    """A socket on a free port of the loopback."""
    # Of TCP by name: only then does asyncio send small pieces at once, as the real servers do.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(512)
    return listener
