"""Byte streams to a process in a container, over hijacked attach and exec connections."""

import json
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import anyio.abc
from anyio.abc import SocketAttribute

from sandboxkit.errors import ProviderUnavailableError, SandboxNotFoundError
from sandboxkit.provider import close_in_forks
from sandboxkit.providers._agent.unix import UnixStream
from sandboxkit.providers.docker._endpoint import Endpoint
from sandboxkit.providers.docker._errors import connection_error

_HEADER = struct.Struct(">BxxxI")
_STDOUT, _STDERR = 1, 2
_STDERR_KEPT = 4096
_CHUNK = 256 * 1024
_HEAD_LIMIT = 64 * 1024


class AttachStream(anyio.abc.ByteStream):
    """The stdin and stdout of one process; the end of its stderr is kept for error messages.

    The daemon multiplexes both outputs in frames with an 8-byte header, which are decoded here.
    """

    def __init__(self, transport: anyio.abc.ByteStream, received: bytes) -> None:
        self._transport = transport
        self._data = received
        self._pos = 0
        self._frame_left = 0
        self._stderr = b""

    @property
    def stderr(self) -> str:
        """The last text (at most 4096 bytes) that the process wrote to its stderr."""
        return self._stderr.decode(errors="replace").strip()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while True:
            while self._frame_left == 0:
                await self._next_frame()
            if self._pos == len(self._data):
                self._data, self._pos = await self._transport.receive(_CHUNK), 0
            end = min(self._pos + min(self._frame_left, max_bytes), len(self._data))
            chunk = self._data[self._pos : end]
            self._pos = end
            self._frame_left -= len(chunk)
            if chunk:
                return chunk

    async def _next_frame(self) -> None:
        """Read up to the payload of the next stdout frame, and store stderr on the way."""
        kind, length = _HEADER.unpack(await self._take(_HEADER.size))
        if kind == _STDOUT:
            self._frame_left = length
        elif kind == _STDERR:
            while length:
                text = await self._take(min(length, _STDERR_KEPT))
                length -= len(text)
                self._stderr = (self._stderr + text)[-_STDERR_KEPT:]
        else:
            raise anyio.BrokenResourceError(f"Docker sent a frame of unknown kind {kind}")

    async def _take(self, size: int) -> bytes:
        parts = self._data[self._pos : self._pos + size]
        self._pos += len(parts)
        while len(parts) < size:
            self._data, self._pos = await self._transport.receive(_CHUNK), 0
            more = self._data[: size - len(parts)]
            parts += more
            self._pos = len(more)
        return parts

    async def send(self, item: bytes) -> None:
        await self._transport.send(item)

    async def send_eof(self) -> None:
        await self._transport.send_eof()

    async def aclose(self) -> None:
        await self._transport.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:  # anyio's own signature
        return self._transport.extra_attributes


async def _connect(endpoint: Endpoint) -> anyio.abc.ByteStream:
    if endpoint.socket_path is not None:
        unix = await UnixStream.connect(endpoint.socket_path)
        close_in_forks(unix.extra(SocketAttribute.raw_socket))
        return unix
    assert endpoint.host is not None
    context = endpoint.ssl_context()
    stream: anyio.abc.ByteStream
    if context is None:
        stream = await anyio.connect_tcp(endpoint.host, endpoint.port)
    else:
        stream = await anyio.connect_tcp(
            endpoint.host, endpoint.port, ssl_context=context, tls_standard_compatible=False
        )
    # Without keepalive the stream would wait for ever if the daemon's machine vanished.
    raw = stream.extra(SocketAttribute.raw_socket)
    close_in_forks(raw)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, option):
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return stream


async def hijack(
    endpoint: Endpoint, path: str, body: Mapping[str, object] | None, *, seconds: float
) -> AttachStream:
    """Send one request and keep its connection as a bidirectional byte stream.

    Raises SandboxNotFoundError for the daemon's 404 or 409 (no such container, not running),
    AuthenticationError, ProviderUnavailableError, and TimeoutError after `seconds`.
    """
    payload = b"" if body is None else json.dumps(body).encode()
    request = (
        f"POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    ).encode()
    transport: anyio.abc.ByteStream | None = None
    try:
        with anyio.fail_after(seconds):
            transport = await _connect(endpoint)
            await transport.send(request + payload)
            received = b""
            while b"\r\n\r\n" not in received:
                if len(received) > _HEAD_LIMIT:
                    raise ProviderUnavailableError(
                        f"{endpoint.url} does not speak Docker's protocol"
                    )
                received += await transport.receive()
            head, _, rest = received.partition(b"\r\n\r\n")
            status = _status(head)
            if status in (101, 200):
                return AttachStream(transport, rest)
            message = await _error_text(transport, rest)
    except BaseException as error:
        if transport is not None:
            await anyio.aclose_forcefully(transport)
        if isinstance(error, OSError | anyio.EndOfStream | anyio.BrokenResourceError):
            raise connection_error(error, endpoint.url) from error
        raise
    await anyio.aclose_forcefully(transport)
    if status in (404, 409):
        raise SandboxNotFoundError(f"the sandbox has ended: {message}")
    raise ProviderUnavailableError(f"Docker refused a stream (HTTP {status}): {message}")


def _status(head: bytes) -> int:
    fields = head.split(b"\r\n", 1)[0].split()
    return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 0


async def _error_text(transport: anyio.abc.ByteStream, body: bytes) -> str:
    """Return `message` of the daemon's JSON error, or the raw text that arrives within a second."""
    with anyio.move_on_after(1):
        try:
            while b"}" not in body and len(body) < _HEAD_LIMIT:
                body += await transport.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass
    start, end = body.find(b"{"), body.rfind(b"}")
    try:
        return str(json.loads(body[start : end + 1])["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip() or "no explanation"
