"""A byte stream over a unix socket to an agent, with little event-loop overhead."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from anyio.abc import ByteStream, SocketAttribute

_USUAL = 64 << 10
"""Size (bytes) of a read after one that got less: larger buffers cost the allocator a memory mapping."""


class UnixStream(ByteStream):
    """A byte stream that owns a connected socket.

    anyio's own stream registers its socket with the event loop for each wait and yields at each
    call, which makes four of the eight loop iterations of a command without output. This stream
    stays registered while a task receives, and yields only when it must wait. One task may receive
    and one may send; any may close.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket, self._fd = connected, connected.fileno()
        self._loop = asyncio.get_running_loop()
        self._registered = self._closed = False
        self._receiving: asyncio.Future[bytes] | None = None
        self._most, self._size = 0, _USUAL
        self._rest = b""
        """Bytes that were read for a receiver that was then cancelled."""
        self._sending: asyncio.Future[None] | None = None
        self._guard = anyio.ResourceGuard("writing to")

    @classmethod
    async def connect(cls, path: str) -> "UnixStream":
        """Connect to a socket by path; a leading NUL makes it abstract. Raises OSError."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connected, path)
            return cls(connected)
        except BaseException:
            connected.close()
            raise

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self._closed:
            raise anyio.ClosedResourceError
        if self._rest:
            data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
            return data
        if self._receiving is not None:
            raise anyio.BusyResourceError("reading from")
        if not self._registered:
            self._loop.add_reader(self._fd, self._readable)
            self._registered = True
        waiting: asyncio.Future[bytes] = self._loop.create_future()
        self._receiving = waiting
        self._most = max_bytes
        try:
            data = await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self._rest = waiting.result()
            raise
        finally:
            self._receiving = None
        if not data:
            raise anyio.EndOfStream
        return data

    def _readable(self) -> None:
        waiting = self._receiving
        if waiting is None or waiting.done():
            # Leave the data in the kernel until a task receives, which keeps the back-pressure.
            self._loop.remove_reader(self._fd)
            self._registered = False
            return
        try:
            size = min(self._size, self._most)
            data = self._socket.recv(size)
            self._size = self._most if len(data) >= _USUAL else _USUAL
            waiting.set_result(data)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            waiting.set_exception(_broken(error))

    async def send(self, item: bytes) -> None:
        with self._guard:
            view = memoryview(item)
            while view:
                if self._closed:
                    raise anyio.ClosedResourceError
                try:
                    view = view[self._socket.send(view) :]
                except (BlockingIOError, InterruptedError):
                    await self._writable()
                except OSError as error:
                    raise _broken(error) from error

    def send_now(self, item: bytes) -> bool:
        """Send all of `item` without waiting; return False if it would block and nothing was sent.

        `item` is at most 32 KiB, which the kernel takes whole or not at all. Raises
        BrokenResourceError.
        """
        try:
            sent = self._socket.send(item)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise _broken(error) from error
        if sent != len(item):
            # Linux does not split so small a write. After a partial one the peer would misread all
            # that follows.
            self._socket.shutdown(socket.SHUT_RDWR)
            raise anyio.BrokenResourceError
        return True

    async def _writable(self) -> None:
        self._sending = waiting = self._loop.create_future()
        self._loop.add_writer(self._fd, _wake, waiting)
        try:
            await waiting
        finally:
            self._sending = None
            if not self._closed:
                self._loop.remove_writer(self._fd)

    async def send_eof(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        # Unregister before the close frees the descriptor's number for another file.
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._socket.close()
        if self._receiving is not None and not self._receiving.done():
            self._receiving.set_exception(anyio.ClosedResourceError())
        if self._sending is not None:
            _wake(self._sending)

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:  # Any: anyio's own signature
        return {SocketAttribute.raw_socket: lambda: self._socket}


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


def _broken(error: OSError) -> anyio.BrokenResourceError:
    broken = anyio.BrokenResourceError()
    broken.__cause__ = error
    return broken
