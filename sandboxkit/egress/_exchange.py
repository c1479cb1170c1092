"""Copies between a sandbox and a server, counted and limited in time."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

import anyio
from anyio.abc import ByteStream

from sandboxkit.egress import _http
from sandboxkit.egress._incoming import Incoming
from sandboxkit.egress._refused import EgressRefusedError

_HEAD = 64 << 10
"""The largest head (bytes) of an answer."""


class Meter:
    """Counts bytes in both directions, and takes them from a limit that several meters share."""

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
    """A scope that is cancelled when nothing has passed for some time."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self.scope = seconds, anyio.CancelScope()
        self.moved()

    def moved(self) -> None:
        self.scope.deadline = anyio.current_time() + self._seconds

    def check(self) -> None:
        """Raise EgressRefusedError if the time was over."""
        if self.scope.cancelled_caught:
            raise EgressRefusedError(408, f"nothing passed for {self._seconds:g} s")


async def join(
    stream: ByteStream, incoming: Incoming, remote: ByteStream, meter: Meter, idle_seconds: float
) -> None:
    """Copy both ways until both directions have ended. Raises EgressRefusedError past a limit."""
    idle = _Idle(idle_seconds)

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
    answered: Callable[[], None],
) -> None:
    """Pass a request's body on and the answer back; end with the answer.

    `answered` is called before the first byte of the answer. Raises EgressRefusedError past a limit, and
    for a body or an answer that is not valid.
    """
    idle = _Idle(idle_seconds)

    async def up(data: bytes) -> None:
        idle.moved()
        meter.sent(len(data))
        # A server may answer and close before it has read the whole body.
        with suppress(anyio.BrokenResourceError):
            await remote.send(data)

    async def outward() -> None:
        if length is None:
            await _chunks(incoming, up)
            return
        left = length
        while left:
            data = await incoming.receive(min(left, 64 << 10))
            left -= len(data)
            await up(data)

    async def inward() -> None:
        answer = Incoming(remote)
        while True:
            head = await _answer_head(answer, method)
            if head.status == 101:
                raise EgressRefusedError(502, "the server changes the protocol")
            idle.moved()
            meter.received(len(head.data))
            answered()
            await stream.send(head.data)
            if head.status >= 200:
                break
        left = head.length
        while left != 0:
            try:
                data = await answer.receive(64 << 10 if left is None else min(left, 64 << 10))
            except anyio.EndOfStream:
                return
            left = None if left is None else left - len(data)
            idle.moved()
            meter.received(len(data))
            await stream.send(data)

    with idle.scope:
        await _both(inward, outward, first_ends=True)
    idle.check()


async def _answer_head(answer: Incoming, method: str) -> _http.ResponseHead:
    try:
        return _http.response(await answer.head(_HEAD), method)
    except anyio.EndOfStream as error:
        raise EgressRefusedError(502, "the server ended without an answer") from error
    except EgressRefusedError as error:
        raise EgressRefusedError(502, f"the server's answer: {error.reason}") from error


async def _chunks(incoming: Incoming, up: Callable[[bytes], Awaitable[None]]) -> None:
    """Pass a body in chunks on, with its chunks written anew and without trailers."""
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
    second: Callable[[], Awaitable[None]],
    *,
    first_ends: bool,
) -> None:
    """Run two copies; raise the first error itself. `first_ends`: the second ends with the first."""
    errors: list[Exception] = []

    async def run(copy: Callable[[], Awaitable[None]], *, ends: bool) -> None:
        try:
            await copy()
        except Exception as error:  # noqa: BLE001 - raised below, without the group around it
            errors.append(error)
            group.cancel_scope.cancel()
        if ends:
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: run(second, ends=False))
        await run(first, ends=first_ends)
    if errors:
        raise errors[0]
