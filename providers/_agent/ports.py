"""Connections to and from a sandbox's loopback ports; one agent call carries each connection."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import inf

import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import SandboxError
from sandboxkit.provider import PortListener
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.failures import CallError, ConnectionEndedError, SilentError
from sandboxkit.providers._agent.frames import Fields, Kind
from sandboxkit.providers._agent.stream import AgentStream

CONNECT, LISTEN, _ACCEPT = 14, 15, 16
_LINGER_SECONDS = 2.0
MOST_CONNECTIONS = 4096
"""How many connections of all sandboxes of a provider object may be open at a time."""
_SHARE = 1 / 8
"""A sandbox may open another connection while it has fewer than this fraction of the free ones."""
_LOST = (ConnectionEndedError, SilentError)
Explain = Callable[[ConnectionEndedError | SilentError], Awaitable[SandboxError]]
"""Returns the provider error for a lost link."""


class OpenConnections:
    """Limits the open connections of a provider's sandboxes, because each may buffer a window of data.

    The more connections are open, the fewer one sandbox may have (a dynamic threshold, as switches use
    for shared buffers). A sandbox without a connection gets one as long as one is free. Until half of the
    limit is used, only the agent's own limit applies.
    """

    def __init__(self, most: int) -> None:
        self.most, self.total = most, 0
        self._counts: Counter[str] = Counter()
        self._freed = asyncio.Event()

    def count(self, sandbox_id: str) -> int:
        """Return how many connections of a sandbox are open."""
        return self._counts[sandbox_id]

    def add(self, sandbox_id: str) -> bool:
        """Reserve one connection for a sandbox; return False if there is no room for it."""
        if self._counts[sandbox_id] >= _SHARE * (self.most - self.total):
            return False
        self._counts[sandbox_id] += 1
        self.total += 1
        return True

    async def wait_for_room(self, sandbox_id: str) -> None:
        """Reserve one connection for a sandbox, and wait for room if needed."""
        while not self.add(sandbox_id):
            await self._freed.wait()

    def remove(self, sandbox_id: str) -> None:
        """Release one connection of a sandbox."""
        self.total -= 1
        self._counts[sandbox_id] -= 1
        if not self._counts[sandbox_id]:
            del self._counts[sandbox_id]
        freed, self._freed = self._freed, asyncio.Event()
        freed.set()


class PortStream(ByteStream):
    """One connection of a sandbox's loopback.

    One task may receive and one may send; any may close it. A close before both directions have ended
    resets the connection inside. Otherwise the close waits until the program has received all data, and
    resets the connection after 2 s. Raises provider errors if the link to the agent is lost.
    """

    def __init__(self, stream: AgentStream, explain: Explain, on_close: Callable[[], None]) -> None:
        """`stream` is a call whose connection is open; `on_close` is called once, at the close."""
        self._stream, self._explain, self._on_close = stream, explain, on_close
        self._rest = b""
        """Bytes that were received but did not fit into the receiver's `max_bytes`."""
        self._ended = self._sent_eof = self._closed = self._reset = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self._rest:
            self._rest = await self._next(max_bytes)
        data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        try:
            await self._stream.consumed(len(data))
        except ConnectionEndedError:
            pass  # this data arrived before the end, which the next call reports
        return data

    async def _next(self, max_bytes: int) -> bytes:
        if self._closed:
            raise anyio.ClosedResourceError
        if self._ended:
            raise anyio.EndOfStream
        if self._reset:
            raise anyio.BrokenResourceError
        try:
            frame = await self._stream.receive()
        except CallError as error:
            self._reset = True
            raise self._broken() from error
        except _LOST as error:
            raise await self._explain(error) from error
        if frame.kind != Kind.STDOUT:
            self._ended = True
            raise anyio.EndOfStream
        if more := self._stream.queued(max_bytes - len(frame.payload)):
            return b"".join((frame.payload, *more))  # fewer, larger sends cost less than the copy
        return frame.payload

    async def send(self, item: bytes) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        try:
            await self._stream.send(item)
        except _LOST as error:
            raise await self._explain(error) from error
        if self._stream.finished:
            raise self._broken()

    async def send_eof(self) -> None:
        if self._stream.finished or self._closed:
            return
        self._sent_eof = True
        try:
            await self._stream.finish()
        except ConnectionEndedError as error:
            raise await self._explain(error) from error

    def _broken(self) -> Exception:
        return anyio.ClosedResourceError() if self._closed else anyio.BrokenResourceError()

    async def aclose(self) -> None:
        first, self._closed = not self._closed, True
        try:
            if self._ended and self._sent_eof and not self._stream.finished:
                with anyio.move_on_after(_LINGER_SECONDS), suppress(CallError, *_LOST):
                    await self._stream.receive()  # the last frame; an error ends the call as well
        finally:
            if first:
                self._on_close()
            await _end(self._stream)


class AgentPortListener(PortListener):
    """A port of a sandbox's loopback on which the agent's LISTEN call listens."""

    def __init__(
        self,
        client: AgentClient,
        call: AgentStream,
        port: int,
        explain: Explain,
        connections: OpenConnections,
        sandbox_id: str,
    ) -> None:
        super().__init__(port)
        self._client, self._listening, self._explain = client, call, explain
        self._connections, self._sandbox_id = connections, sandbox_id

    async def accept(self) -> ByteStream:
        try:
            stream, _ = await opened(self._client, _ACCEPT, self.port)
        except CallError as error:
            raise anyio.ClosedResourceError from error
        except _LOST as error:
            raise await self._explain(error) from error
        try:
            await self._connections.wait_for_room(self._sandbox_id)
        except BaseException:
            await _end(stream)
            raise
        remove = partial(self._connections.remove, self._sandbox_id)
        return PortStream(stream, self._explain, remove)

    async def aclose(self) -> None:
        await _end(self._listening)


async def opened(client: AgentClient, operation: int, port: int) -> tuple[AgentStream, int]:
    """Make a call and wait until its connection is open; return the call's stream and the port."""
    stream = client.call(operation, port.to_bytes(2, "big"), most=inf, connection=True)
    try:
        frame = await stream.receive()
    except BaseException:
        await _end(stream)
        raise
    return stream, Fields(frame.payload).u16()


async def _end(stream: AgentStream) -> None:
    try:
        await stream.abandon()
    except _LOST:
        pass  # the kill is queued until the agent responds again, or the agent was ended
