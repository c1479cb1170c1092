"""Copies data between a sandbox and a server, with limits on bytes and idle time."""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Self

import anyio
from anyio.abc import ByteStream

from sandboxkit._life._work import leaf_of
from sandboxkit.egress import _http
from sandboxkit.egress._incoming import Incoming
from sandboxkit.egress._refused import EgressRefusedError

_HEAD = 64 << 10
"""The largest head (bytes) of a response."""


class Meter:
    """Counts bytes in both directions against a limit: its own `left`, or that of the meter `shared`."""

    def __init__(self, left: int, shared: "Self | None" = None) -> None:
        self.left, self.up, self.down, self._shared = left, 0, 0, shared

    def sent(self, size: int) -> None:
        """Count bytes to the server. Raises EgressRefusedError past the limit."""
        self._take(size)
        self.up += size

    def received(self, size: int) -> None:
        """Count bytes from the server. Raises EgressRefusedError past the limit."""
        self._take(size)
        self.down += size

    def _take(self, size: int) -> None:
        of = self._shared or self
        of.left -= size
        if of.left < 0:
            raise EgressRefusedError(403, "the limit max_bytes is reached")


class _Idle:
    """A scope that is cancelled when no data has passed for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self.scope = seconds, anyio.CancelScope()
        self.moved()

    def moved(self) -> None:
        self.scope.deadline = anyio.current_time() + self._seconds

    def check(self) -> None:
        """Raise EgressRefusedError if the scope was cancelled."""
        if self.scope.cancelled_caught:
            raise EgressRefusedError(408, f"nothing passed for {self._seconds:g} s")


async def join(
    stream: ByteStream, incoming: Incoming, remote: ByteStream, meter: Meter, idle_seconds: float
) -> None:
    """Copy both ways until both directions have ended.

    Raises EgressRefusedError when more than the meter's bytes pass, or when none pass for `idle_seconds`.
    """
    idle, incoming.watched = _Idle(idle_seconds), False

    async def copy(
        receive: Callable[[], Awaitable[bytes]], count: Callable[[int], None], to: ByteStream
    ) -> None:
        try:
            while True:
                data = await receive()
                idle.moved()
                count(len(data))
                await to.send(data)
        except anyio.EndOfStream:
            incoming.watched = to is remote
            await to.send_eof()

    with idle.scope:
        await _both(
            lambda: copy(incoming.receive, meter.sent, remote),
            lambda: copy(remote.receive, meter.received, stream),
            first_ends=False,
        )
    idle.check()


async def exchange(
    method: str,
    length: int | None,
    stream: ByteStream,
    incoming: Incoming,
    remote: ByteStream,
    meter: Meter,
    idle_seconds: float,
    on_response: Callable[[], None],
) -> None:
    """Forward a request's body to the server and the response to the sandbox; return after the response.

    `length` is the body's size in bytes, None for chunks. `on_response` is called before the first byte
    of the response. Raises EgressRefusedError past a limit, and for an invalid body or response.
    """
    idle, incoming.watched = _Idle(idle_seconds), False

    async def up(data: bytes) -> None:
        idle.moved()
        meter.sent(len(data))
        # A server may respond and close before it has read the whole body.
        with suppress(anyio.BrokenResourceError):
            await remote.send(data)

    async def outward() -> None:
        if length is None:
            await _chunks(incoming, up)
        left = length
        while left:
            data = await incoming.receive(min(left, 64 << 10))
            left -= len(data)
            await up(data)
        incoming.watched = True

    async def inward() -> None:
        response = Incoming(remote)
        while True:
            head = await _response_head(response, method)
            if head.status == 101:
                raise EgressRefusedError(502, "the server changes the protocol")
            idle.moved()
            meter.received(len(head.data))
            on_response()
            await stream.send(head.data)
            if head.status >= 200:
                break
        left = head.length
        while left != 0:
            try:
                data = await response.receive(64 << 10 if left is None else min(left, 64 << 10))
            except anyio.EndOfStream:
                return
            left = None if left is None else left - len(data)
            idle.moved()
            meter.received(len(data))
            await stream.send(data)

    with idle.scope:
        await _both(inward, outward, first_ends=True)
    idle.check()


async def _response_head(response: Incoming, method: str) -> _http.ResponseHead:
    try:
        return _http.response(await response.head(_HEAD), method)
    except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
        raise EgressRefusedError(
            502, "the server closed the connection without a response"
        ) from error
    except EgressRefusedError as error:
        raise EgressRefusedError(502, f"the server's response: {error.reason}") from error


async def _chunks(incoming: Incoming, up: Callable[[bytes], Awaitable[None]]) -> None:
    """Forward a chunked body: write its chunks anew, and refuse trailers."""
    while left := _http.chunk_size(await incoming.line()):
        while left:
            data = await incoming.receive(min(left, 64 << 10))
            left -= len(data)
            await up(b"%x\r\n%b\r\n" % (len(data), data))
        if await incoming.exactly(2) != b"\r\n":
            raise EgressRefusedError(400, "a chunk does not end in CR LF")
    if await incoming.line():
        raise EgressRefusedError(400, "the body has trailers")
    await up(b"0\r\n\r\n")


async def _both(
    first: Callable[[], Awaitable[None]],
    second: Callable[[], Coroutine[Any, Any, None]],
    *,
    first_ends: bool,
) -> None:
    """Run both functions concurrently; raise the first error, without a group around it.

    `first_ends`: cancel the second when the first ends.
    """
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(second)
            await first()
            if first_ends:
                group.cancel_scope.cancel()
    except BaseExceptionGroup as errors:
        raise leaf_of(errors) from errors
