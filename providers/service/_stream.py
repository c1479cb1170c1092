"""The bytes of an agent's link, as binary messages of a WebSocket."""

import contextlib
import socket

import aiohttp
import anyio
from anyio.abc import ByteStream

__all__ = ["CLOSE_SECONDS", "LinkStream"]

CLOSE_SECONDS = 1.0
_PIECE = 256 << 10


class LinkStream(ByteStream):
    """One task sends and one receives; any task may close it, which takes 1 s at most.

    `receive` raises BrokenResourceError when the service closes it or the connection breaks.
    """

    def __init__(self, connection: "aiohttp.ClientWebSocketResponse[bool]") -> None:
        self._connection = connection
        self._socket: socket.socket | None = connection.get_extra_info("socket")
        self._rest = memoryview(b"")
        self._closed = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while not self._rest:
            if self._closed:
                raise anyio.ClosedResourceError
            message = await self._connection.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise anyio.ClosedResourceError if self._closed else anyio.BrokenResourceError
            self._rest = memoryview(message.data)
        data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return bytes(data)

    async def send(self, item: bytes) -> None:
        view = memoryview(item)
        for at in range(0, len(view), _PIECE):
            if self._closed:
                raise anyio.ClosedResourceError
            try:
                await self._connection.send_bytes(bytes(view[at : at + _PIECE]))
            except (aiohttp.ClientError, OSError) as error:
                raise anyio.BrokenResourceError(str(error)) from error

    async def send_eof(self) -> None:
        raise NotImplementedError("a WebSocket's input ends when it is closed")

    async def aclose(self) -> None:
        self._closed = True
        try:
            with anyio.move_on_after(CLOSE_SECONDS):
                await self._connection.close()
        finally:
            # A close that was cut short leaves the connection open.
            if self._socket is not None:
                with contextlib.suppress(OSError):  # closed already
                    self._socket.shutdown(socket.SHUT_RDWR)
