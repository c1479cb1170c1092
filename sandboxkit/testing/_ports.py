"""Ports of FakeProvider's sandboxes, which are ports of this machine."""

import errno
import os
import socket
import struct

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream

from sandboxkit.errors import PortError
from sandboxkit.provider import PortListener


class FakeConnection(ByteStream):
    """A TCP connection on this machine. Closing it before both directions have ended resets it."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._open = {"in", "out"}

    async def receive(self, max_bytes: int = 65536) -> bytes:
        try:
            return await self._stream.receive(max_bytes)
        except anyio.EndOfStream:
            self._open.discard("in")
            raise

    async def send(self, item: bytes) -> None:
        await self._stream.send(item)

    async def send_eof(self) -> None:
        self._open.discard("out")
        await self._stream.send_eof()

    async def aclose(self) -> None:
        sock = self._stream.extra(SocketAttribute.raw_socket)
        if self._open and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self._stream.aclose()


class FakePortListener(PortListener):
    """A port of this machine's loopback."""

    def __init__(self, port: int, listener: SocketListener) -> None:
        super().__init__(port)
        self._listener, self._turn = listener, anyio.Lock()

    async def accept(self) -> ByteStream:
        async with self._turn:
            return FakeConnection(await self._listener.accept())

    async def aclose(self) -> None:
        await self._listener.aclose()


async def connect(port: int) -> ByteStream:
    """Connect to a port of this machine. Raises PortError."""
    try:
        return FakeConnection(await anyio.connect_tcp("127.0.0.1", port))
    except OSError as error:
        raise _refused(port, error.__cause__ or error) from error


async def listen(port: int) -> PortListener:
    """Listen on a port of this machine. Raises PortError."""
    try:
        several = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    except OSError as error:
        raise _refused(port, error) from error
    listener = several.listeners[0]
    assert isinstance(listener, SocketListener)
    return FakePortListener(listener.extra(SocketAttribute.local_port), listener)


def _refused(port: int, error: BaseException) -> PortError:
    number = getattr(error, "errno", None) or errno.EIO
    return PortError(f"port {port}: {os.strerror(number).lower()}", errno=number)
