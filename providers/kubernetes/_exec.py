"""A byte stream to a program in a container, over the exec call's WebSocket.

The pod's first process is never attached to, because container runtimes log what an attach carries.
"""

import json
import socket

import aiohttp
import anyio
import anyio.abc

from sandboxkit.providers._hosted.agent import ProgramStream

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""Newest first. Servers before 1.30 have only v4, which cannot close a channel."""
CLOSE_SECONDS = 1.0

_STDIN, _STDOUT, _STDERR, _STATUS = range(4)
_OVER = 255
"""v5: this message closes the channel that its next byte names."""
_PIECE = 128 << 10
_DIAGNOSTICS_BYTES = 2000


class PodExecStream(anyio.abc.ByteStream):
    """stdin and stdout of one program that `Api.exec` started.

    One task sends and one receives; any task may close. `receive` raises EndOfStream when the
    program has ended, BrokenResourceError when the connection broke, and ClosedResourceError after
    `aclose`. Closing takes about 1 s at most, and no time if forced. It ends the program's stdin
    but does not kill the program.
    """

    def __init__(self, connection: "aiohttp.ClientWebSocketResponse[bool]") -> None:
        self._connection = connection
        self._socket: socket.socket | None = connection.get_extra_info("socket")
        self._rest = memoryview(b"")
        self._stderr = b""
        self._status = ""
        self._end: type[Exception] | None = None
        """The exception that `receive` raises once no data is left."""
        self._closed = False
        self._receiving: anyio.CancelScope | None = None
        self._received = anyio.Event()

    @property
    def diagnostics(self) -> str:
        """The last 2000 bytes of the program's stderr, and why the program ended, as text."""
        parts = (self._stderr.decode(errors="replace").strip(), self._status)
        return "; ".join(part for part in parts if part)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while not self._rest:
            if self._closed:
                raise anyio.ClosedResourceError
            if self._end is not None:
                raise self._end(self.diagnostics)
            await self._take()
        data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return bytes(data)

    async def _take(self) -> None:
        """Receive one message and handle it by its channel."""
        if self._receiving is not None:
            raise anyio.BusyResourceError("receiving from")
        message = None
        try:
            with anyio.CancelScope() as self._receiving:
                message = await self._connection.receive()
        finally:
            self._receiving = None
            self._received.set()
        if message is None:
            raise anyio.ClosedResourceError
        if message.type is not aiohttp.WSMsgType.BINARY:
            why = message.extra or self._connection.exception() or "the connection broke"
            self._status = self._status or str(why)
            self._end = anyio.BrokenResourceError
            return
        channel, data = message.data[0] if message.data else _OVER, memoryview(message.data)[1:]
        if channel == _STDOUT:
            self._rest = data
        elif channel == _STDERR:
            self._stderr = (self._stderr + data)[-_DIAGNOSTICS_BYTES:]
        elif channel == _STATUS:
            self._conclude(bytes(data))

    def _conclude(self, status: bytes) -> None:
        """Handle the status message: the program has ended, or the connection to it has failed."""
        try:
            report = json.loads(status)
            message = str(report.get("message") or "")
            ended = report["status"] == "Success" or report.get("reason") == "NonZeroExitCode"
        except (ValueError, LookupError, AttributeError):
            message, ended = status.decode(errors="replace"), False
        self._status = message[-_DIAGNOSTICS_BYTES:]
        self._end = anyio.EndOfStream if ended else anyio.BrokenResourceError

    async def send(self, item: bytes) -> None:
        view = memoryview(item)
        for at in range(0, len(view), _PIECE):
            await self._send(b"\0" + view[at : at + _PIECE])

    async def send_eof(self) -> None:
        """End the program's stdin. Raises BrokenResourceError on servers before 1.30."""
        if self._connection.protocol != PROTOCOLS[0]:
            raise anyio.BrokenResourceError("this server cannot end a program's input")
        await self._send(bytes((_OVER, _STDIN)))

    async def _send(self, message: bytes) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        try:
            await self._connection.send_bytes(message)
        except (aiohttp.ClientError, OSError) as error:
            if self._closed:
                raise anyio.ClosedResourceError from error
            raise anyio.BrokenResourceError(str(error)) from error

    async def aclose(self) -> None:
        self._closed = True
        try:
            # Stop the receiver first: the connection must not be in use when it is closed.
            with anyio.CancelScope(shield=True):
                while self._receiving is not None:
                    self._received = anyio.Event()
                    self._receiving.cancel()
                    await self._received.wait()
            with anyio.move_on_after(CLOSE_SECONDS):
                await self._connection.close()
        finally:
            # Close the socket even if it still holds unread bytes.
            if self._socket is not None:
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # closed


class PodProgram(ProgramStream):
    """A PodExecStream as the installation of the agent takes it."""

    def __init__(self, stream: PodExecStream) -> None:
        self.stream = stream

    async def receive(self, max_bytes: int = 65536) -> bytes:
        try:
            return await self.stream.receive(max_bytes)
        finally:
            self.diagnostics = self.stream.diagnostics.encode()

    async def send(self, item: bytes) -> None:
        await self.stream.send(item)

    async def aclose(self) -> None:
        await self.stream.aclose()
