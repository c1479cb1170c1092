"""One request to an agent: its frames, and its flow control in both directions."""

import asyncio
from collections import deque
from collections.abc import Collection
from math import inf
from typing import Protocol

import anyio

from sandboxkit.providers._agent import frames
from sandboxkit.providers._agent.failures import (
    CallError,
    ConnectionEndedError,
    ProtocolError,
    SilentError,
)
from sandboxkit.providers._agent.frames import Fields, Frame, Kind, Windows

_LOOK = 1.0
_MOST_FRAMES = 4096
"""How many frames of a request wait one by one; more are joined, because each takes more memory than its bytes."""

_DATA = frozenset({Kind.STDOUT, Kind.STDERR})
FINAL = frozenset({Kind.EXIT, Kind.DONE, Kind.FAIL})
OF_COMMAND = _DATA | {Kind.CREDIT, Kind.EXIT, Kind.FAIL}
OF_CALL = frozenset({Kind.STDOUT, Kind.CREDIT, Kind.DONE, Kind.FAIL})
OF_CONNECTION = OF_CALL | {Kind.OPENED, Kind.EOF}


class Sender(Protocol):
    """What a request needs of the connection that carries it; `AgentClient` is one."""

    windows: Windows
    ended: str | None

    def post(self, frame: bytes, stream: int) -> None: ...

    async def send_data(self, frame: bytes, stream: int) -> None: ...

    def kill_patience(self) -> float: ...

    async def outlived(self, waited: float) -> None: ...

    def ping_soon(self) -> None: ...


class AgentStream:
    """One request in progress: its received frames and its flow control in both directions."""

    def __init__(
        self,
        client: Sender,
        number: int,
        expected: Collection[Kind] = OF_COMMAND,
        most: float = inf,
    ) -> None:
        """`expected` are the types of frames with which the agent may answer, OPENED and EOF once each.

        `most` is the largest answer in bytes, the payload of the last frame apart.
        """
        self.number = number
        self.finished = False
        self.abandoned = False
        self.silent = False
        """Whether the request failed because the agent fell silent; the request must then be killed."""
        self._client = client
        self._expected = set(expected)
        self._frames: deque[Frame] = deque()
        self._arrived = asyncio.Event()
        self._room = client.windows.to_agent
        """How many more bytes may be sent."""
        self._more_room = asyncio.Event()
        self._consumed = 0
        self._allowed = client.windows.from_agent
        """How many more bytes the agent may send before it is granted credit."""
        self._left = most
        """How many more bytes it may send at all."""

    def deliver(self, frame: Frame) -> None:
        """Queue a received frame or apply its credit; called by the connection only.

        Raises ProtocolError for what the agent may not send.
        """
        kind = frame.kind
        if kind not in self._expected:
            raise ProtocolError(f"a frame {kind.name} in answer to a request that has none")
        if kind == Kind.CREDIT:
            credit = Fields(frame.payload).u32()
            self._room += credit
            if not credit or self._room > self._client.windows.to_agent:
                raise ProtocolError("credit for data that was not sent")
            self._more_room.set()
            return
        if kind in _DATA:
            size = len(frame.payload)
            self._allowed -= size
            self._left -= size
            if not size or self._allowed < 0 or self._left < 0:
                raise ProtocolError("more data than the request or its window allows, or none")
        elif kind in FINAL:
            self.finished = True
            self._more_room.set()
        else:
            self._expected.discard(kind)
        if self.abandoned and not self.finished:
            return
        self._frames.append(frame)
        if len(self._frames) > _MOST_FRAMES:
            self._join()
        self._arrived.set()

    def _join(self) -> None:
        """Join the waiting data of each type: the order of a type counts, between two it does not."""
        payloads: dict[Kind, list[bytes]] = {}
        for frame in self._frames:
            payloads.setdefault(frame.kind, []).append(frame.payload)
        self._frames = deque(
            Frame(kind, self.number, b"".join(parts)) for kind, parts in payloads.items()
        )

    def connection_ended(self) -> None:
        """Wake all waiters, whose calls then raise; called by the connection only."""
        self._arrived.set()
        self._more_room.set()

    def fall_silent(self) -> None:
        """Fail the request with SilentError; called by the connection only."""
        self.silent = True
        self._arrived.set()
        self._more_room.set()

    def _check(self) -> None:
        if self._client.ended is not None:
            raise ConnectionEndedError(self._client.ended)
        if self.silent:
            raise SilentError

    async def receive(self) -> Frame:
        """Wait for the next frame. Raises ConnectionEndedError, SilentError, or CallError for FAIL."""
        while not self._frames:
            self._check()
            self._arrived.clear()
            await self._arrived.wait()
        frame = self._frames.popleft()
        if frame.kind == Kind.FAIL:
            fields = Fields(frame.payload)
            raise CallError(fields.u32(), fields.text(), fields.text() if fields else None)
        return frame

    def queued(self, most: int) -> list[bytes]:
        """Remove the next STDOUT frames from the queue, and return their payloads, at most `most` bytes."""
        payloads: list[bytes] = []
        queue = self._frames
        while queue and queue[0].kind == Kind.STDOUT and len(queue[0].payload) <= most:
            payloads.append(queue.popleft().payload)
            most -= len(payloads[-1])
        return payloads

    async def consumed(self, size: int) -> None:
        """Grant the agent credit for `size` bytes that the receiver has processed."""
        self._consumed += size
        if self._consumed >= self._client.windows.from_agent // 2 and not self.finished:
            credit = self._consumed.to_bytes(4, "big")
            self._allowed += self._consumed
            self._consumed = 0
            await self.control(Kind.CREDIT, credit)

    async def send(self, data: bytes) -> None:
        """Send data, and wait for the agent's credit if needed. Data is dropped once the request has ended.

        Raises ConnectionEndedError and SilentError.
        """
        view = memoryview(data)
        while view and not self.finished:
            while self._room == 0:
                if self.finished:
                    return
                self._check()
                self._more_room.clear()
                await self._more_room.wait()
            size = min(len(view), self._room, frames.CHUNK_BYTES)
            self._room -= size
            frame = frames.encode(Kind.DATA, self.number, view[:size])
            await self._client.send_data(frame, self.number)
            view = view[size:]

    def whole(self, data: bytes) -> bytes:
        """Return the frames of all data of a new request, at most `MOST_ALONG` bytes, and of its end."""
        self._room -= len(data)
        content = frames.encode(Kind.DATA, self.number, data) if data else b""
        return content + frames.encode(Kind.EOF, self.number)

    async def finish(self) -> None:
        """Send EOF: no more data follows."""
        await self._client.send_data(frames.encode(Kind.EOF, self.number), self.number)

    async def control(self, kind: Kind, payload: bytes = b"") -> None:
        """Send a control frame, which needs no credit and overtakes data. Raises ConnectionEndedError."""
        if self._client.ended is not None:
            raise ConnectionEndedError(self._client.ended)
        self._client.post(frames.encode(kind, self.number, payload), self.number)

    async def abandon(self) -> None:
        """Kill the request and wait until it has ended; a command's whole process tree is then dead.

        An agent that does not confirm the end in time is ended, see `AgentClient.outlived`. For a request
        that failed through silence, the kill is only queued for when the agent recovers.
        """
        if self.finished or self._client.ended is not None:
            return
        self.abandoned = True
        self._frames.clear()
        self._client.post(frames.encode(Kind.KILL, self.number), self.number)
        if self.silent:
            return
        with anyio.CancelScope(shield=True):
            waited = 0.0
            while waited < self._client.kill_patience():
                self._client.ping_soon()
                waited += _LOOK
                with anyio.move_on_after(_LOOK):
                    while not self.finished and self._client.ended is None:
                        if self.silent:
                            raise SilentError
                        self._arrived.clear()
                        await self._arrived.wait()
                    return
            await self._client.outlived(waited)
