"""A connection to one sandbox's agent: commands, file calls and their streams over it."""

import asyncio
from collections import deque
from typing import Self

import anyio
from anyio.abc import ByteStream

from sandboxkit.providers._agent import frames
from sandboxkit.providers._agent.frames import Fields, Frame, FrameDecoder, Kind, ProtocolError

__all__ = ["AgentClient", "AgentStream", "CallError", "ConnectionEndedError"]

_RECEIVE_BYTES = 256 << 10
_QUEUE_BYTES = 1 << 20
_KILL_PATIENCE = 30.0
"""Seconds for the agent to answer a kill. Only one that no longer runs at all takes longer."""

_FINAL = frozenset({Kind.EXIT, Kind.DONE, Kind.FAIL})


class ConnectionEndedError(Exception):
    """The agent's stream ended; `reason` is what it said last, "" for nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason or "the agent's stream ended")
        self.reason = reason


class CallError(Exception):
    """The agent refused a call; `errno` is Linux's number."""

    def __init__(self, errno: int, message: str) -> None:
        super().__init__(message)
        self.errno = errno


class AgentStream:
    """One request in progress: what the agent sent for it, and what it may still be sent."""

    def __init__(self, client: "AgentClient", number: int) -> None:
        self.number = number
        self.finished = False
        self.abandoned = False
        self._client = client
        self._frames: deque[Frame] = deque()
        self._arrived = anyio.Event()
        self._room = frames.IN_WINDOW
        self._more_room = anyio.Event()
        self._consumed = 0

    def deliver(self, frame: Frame) -> None:
        """Take a frame from the connection; called by it only."""
        if frame.kind == Kind.CREDIT:
            self._room += Fields(frame.payload).u32()
            self._more_room.set()
            return
        if frame.kind in _FINAL:
            self.finished = True
            self._more_room.set()
        elif self.abandoned:
            return
        self._frames.append(frame)
        self._arrived.set()

    def connection_ended(self) -> None:
        """Wake whoever waits; called by the connection only."""
        self._arrived.set()
        self._more_room.set()

    async def receive(self) -> Frame:
        """The next frame. Raises ConnectionEndedError, and CallError for a refusal."""
        while not self._frames:
            if self._client.ended is not None:
                raise ConnectionEndedError(self._client.ended)
            self._arrived = anyio.Event()
            await self._arrived.wait()
        frame = self._frames.popleft()
        if frame.kind == Kind.FAIL:
            fields = Fields(frame.payload)
            raise CallError(fields.u32(), fields.text())
        return frame

    async def consumed(self, size: int) -> None:
        """Let the agent send as much again as the receiver has dealt with."""
        self._consumed += size
        if self._consumed >= frames.OUT_WINDOW // 4 and not self.finished:
            credit = self._consumed.to_bytes(4, "big")
            self._consumed = 0
            await self._client.send(frames.encode(Kind.CREDIT, self.number, credit))

    async def send(self, data: bytes) -> None:
        """Send data as the agent has room for it; dropped when the request is over."""
        view = memoryview(data)
        while view and not self.finished:
            while self._room == 0:
                if self.finished:
                    return
                if self._client.ended is not None:
                    raise ConnectionEndedError(self._client.ended)
                self._more_room = anyio.Event()
                await self._more_room.wait()
            size = min(len(view), self._room, frames.CHUNK_BYTES)
            self._room -= size
            await self._client.send(frames.encode(Kind.DATA, self.number, bytes(view[:size])))
            view = view[size:]

    async def finish(self) -> None:
        """Tell the agent that no more data follows."""
        await self._client.send(frames.encode(Kind.EOF, self.number))

    async def control(self, kind: Kind, payload: bytes = b"") -> None:
        """Send a frame that is not data."""
        await self._client.send(frames.encode(kind, self.number, payload))

    async def abandon(self) -> None:
        """Stop the request, and return when it has: a command's whole tree is dead then."""
        if self.finished or self._client.ended is not None:
            return
        self.abandoned = True
        self._frames.clear()
        self._client.post(frames.encode(Kind.KILL, self.number))
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(_KILL_PATIENCE):
                while not self.finished and self._client.ended is None:
                    self._arrived = anyio.Event()
                    await self._arrived.wait()
                return
            await self._client.aclose()


class AgentClient:
    """The client end of an agent's stream. `start` makes one; it lives until the stream ends."""

    def __init__(self, stream: ByteStream) -> None:
        self.ended: str | None = None
        """None while connected; then the agent's last words, or ""."""
        self._stream = stream
        self._streams: dict[int, AgentStream] = {}
        self._next_number = 1
        self._outgoing: deque[bytes] = deque()
        self._queued_bytes = 0
        self._pending = anyio.Event()
        self._written = anyio.Event()
        self._welcomed = anyio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(cls, stream: ByteStream, hello: bytes) -> Self:
        """Shake hands over `stream`, which is closed if that fails.

        Raises ConnectionEndedError when the agent refuses or is not there.
        """
        self = cls(stream)
        # A connection outlives the call that made it, so no task group of that call can hold
        # these two tasks.
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        try:
            self.post(frames.encode(Kind.HELLO, 0, hello))
            await self._welcomed.wait()
            if self.ended is not None:
                raise ConnectionEndedError(self.ended)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.aclose()
            raise
        return self

    async def aclose(self) -> None:
        """End both tasks and close the stream. Idempotent."""
        self._end("the connection was closed")
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        with anyio.CancelScope(shield=True):
            # Closed only when nobody waits for it any more: the event loop would still hold its
            # descriptor's number, and never watch the next file that gets this number.
            if others:
                await asyncio.wait(others)
            await anyio.aclose_forcefully(self._stream)

    def post(self, data: bytes) -> None:
        """Queue bytes without waiting for room."""
        self._outgoing.append(data)
        self._queued_bytes += len(data)
        self._pending.set()

    async def send(self, data: bytes) -> None:
        """Queue bytes, waiting while too much is queued. Raises ConnectionEndedError."""
        while self._queued_bytes > _QUEUE_BYTES and self.ended is None:
            self._written = anyio.Event()
            await self._written.wait()
        if self.ended is not None:
            raise ConnectionEndedError(self.ended)
        self.post(data)

    def open(self, kind: Kind, payload: bytes) -> AgentStream:
        """Begin a request. Raises ConnectionEndedError, and ValueError if it is too large."""
        if self.ended is not None:
            raise ConnectionEndedError(self.ended)
        if len(payload) > frames.MAX_PAYLOAD:
            raise ValueError(
                f"a request of {len(payload)} bytes; {frames.MAX_PAYLOAD} is the limit"
            )
        number = self._next_number
        while number in self._streams:
            number = number % 0xFFFFFFFF + 1
        self._next_number = number % 0xFFFFFFFF + 1
        stream = self._streams[number] = AgentStream(self, number)
        self.post(frames.encode(kind, number, payload))
        return stream

    def _end(self, reason: str) -> None:
        if self.ended is None:
            self.ended = reason
        self._welcomed.set()
        self._written.set()
        self._pending.set()
        for stream in self._streams.values():
            stream.connection_ended()

    async def _read(self) -> None:
        decoder = FrameDecoder()
        reason = ""
        try:
            while True:
                for frame in decoder.feed(await self._stream.receive(_RECEIVE_BYTES)):
                    if frame.kind == Kind.BYE:
                        reason = Fields(frame.payload).text()
                    elif frame.kind == Kind.WELCOME:
                        self._welcomed.set()
                    elif (stream := self._streams.get(frame.stream)) is not None:
                        if frame.kind in _FINAL:
                            del self._streams[frame.stream]
                        stream.deliver(frame)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        except ProtocolError as error:
            reason = f"protocol error: {error}"
        finally:
            self._end(reason)
            await self.aclose()

    async def _write(self) -> None:
        try:
            while self.ended is None:
                if not self._outgoing:
                    self._pending = anyio.Event()
                    await self._pending.wait()
                    continue
                data = b"".join(self._outgoing)
                self._outgoing.clear()
                await self._stream.send(data)
                self._queued_bytes -= len(data)
                self._written.set()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            # The reading side ends the connection, after the agent's last words.
            pass
