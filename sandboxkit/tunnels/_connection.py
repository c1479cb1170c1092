"""One connection to a port of a sandbox."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import ByteStream

from sandboxkit._calls import _arguments
from sandboxkit._life import _forks
from sandboxkit._lifecycle import Lifecycle
from sandboxkit._operation import Operation
from sandboxkit.errors import SandboxError
from sandboxkit.provider import Box
from sandboxkit.tunnels._context_task import ClosedOnExit, ContextTask, opened

_CLOSE_SECONDS = 2.0
CHUNK_BYTES = 64 << 10


class PortConnection(ClosedOnExit):
    """A connection to a program in a sandbox. Made by `Sandbox.connect`, or passed to a handler.

    Every call returns at once with an Operation. One caller may receive while another sends. The calls
    raise ConnectionError if the program resets the connection or this object was closed, and
    SandboxError if the sandbox ended or cannot be reached.
    """

    def __init__(self, stream: ByteStream, on_close: Callable[[], object]) -> None:
        self._stream, self._on_close = stream, on_close
        self._pid = os.getpid()

    def receive(self, max_bytes: int = CHUNK_BYTES) -> Operation[bytes]:
        """Return the next bytes, at least one and at most `max_bytes`; b"" if no more follow."""
        most = _arguments.size("max_bytes", max_bytes)
        self._refuse_fork()
        return Operation(self._receive(most))

    def send(self, data: _arguments.Content) -> Operation[None]:
        """Send data; the Operation is done once all of it is buffered on its way."""
        content = _arguments.content("data", data)
        self._refuse_fork()
        return Operation(self._send(content))

    def send_eof(self) -> Operation[None]:
        """End the sending direction: the program reads end of file. It may still send."""
        self._refuse_fork()
        return Operation(self._stream.send_eof())

    def close(self) -> Operation[None]:
        """Close the connection. Idempotent; does nothing in a forked child.

        It ends the sending direction, discards further data from the program, and resets the connection
        if the program has not closed it within 2 s.
        """
        if os.getpid() != self._pid:
            return Operation._completed()
        return Operation(self._close())

    def _refuse_fork(self) -> None:
        _forks.refuse(self._pid, "this connection", "make another with sandbox.connect()")

    async def _receive(self, most: int) -> bytes:
        try:
            return await self._stream.receive(most)
        except anyio.EndOfStream:
            return b""
        except anyio.BrokenResourceError as error:
            raise _reset() from error
        except anyio.ClosedResourceError as error:
            raise _closed() from error

    async def _send(self, content: bytes) -> None:
        try:
            await self._stream.send(content)
        except anyio.BrokenResourceError as error:
            raise _reset() from error
        except anyio.ClosedResourceError as error:
            raise _closed() from error

    async def _close(self) -> None:
        try:
            # An error ends the connection just as well. A receive that still waits ends with the stream.
            ends = (ConnectionError, SandboxError, anyio.BusyResourceError)
            with anyio.move_on_after(_CLOSE_SECONDS), suppress(*ends):
                await self._stream.send_eof()
                while await self._receive(CHUNK_BYTES):
                    pass
        finally:
            await self._stream.aclose()
            self._on_close()


def _reset() -> ConnectionResetError:
    return ConnectionResetError("the program in the sandbox has reset the connection")


def _closed() -> ConnectionAbortedError:
    return ConnectionAbortedError("the connection was closed, or its sandbox stopped")


def connect(life: Lifecycle, port: int) -> Operation[PortConnection]:
    """Connect to a sandbox's port; see `Sandbox.connect`."""
    port = _arguments.port("port", port)

    @asynccontextmanager
    async def connected(
        box: Box, hold: ContextTask[PortConnection]
    ) -> AsyncIterator[PortConnection]:
        stream = await box.connect(port)
        try:
            yield PortConnection(stream, hold.leave)
        finally:
            await stream.aclose()

    return opened(life, connected)
