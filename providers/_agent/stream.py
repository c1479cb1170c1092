"""One request to an agent: its frames and its flow control, and the queue in which all requests' frames take turns."""

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from math import inf
from time import monotonic
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

_SHORT_BYTES = 16 << 10
"""The longest frame (bytes) that overtakes data; a longer one waits for its request's turn."""
_TURN_BYTES = 128 << 10
"""How many bytes of one request are written per turn, and how many may wait before `room` blocks."""
_HOLD_SECONDS = 0.01
"""How long a command counts as starting, and how long data waits for it."""


class _RequestQueue:
    """The frames of one request that wait for their turn."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.size = 0
        self.begins = False
        """Whether the frame that begins the request is among them; no frame may overtake it."""
        self.shrunk = asyncio.Event()


class SendQueue:
    """Orders frames so that no request waits for the data of another one to be written.

    The frames of one request keep their order, except that a short frame overtakes its data. It never
    overtakes the frame that begins the request, because agents ignore frames of unknown requests.

    While commands start, long data is held back, which leaves more of the link and of the processors to
    them: at most 10 ms at a time, and at most half of all time.
    """

    def __init__(self) -> None:
        self._first: deque[bytes] = deque()
        self._queues: dict[int, _RequestQueue] = {}
        """The requests with data to write, the next one first."""
        self._starting: dict[int, float] = {}
        """The commands that start, the oldest first, and the time at which each no longer counts."""
        self._held_since: float | None = None
        self._free_until = 0.0
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._first or self._queues)

    def put(self, frame: bytes, stream: int) -> None:
        """Add a frame that begins or controls a request; a short one overtakes all data."""
        queue = self._queues.get(stream)
        if len(frame) <= _SHORT_BYTES and not (queue and queue.begins):
            self._first.append(frame)
        else:
            self.put_data(frame, stream)
            self._queues[stream].begins = True

    def put_data(self, frame: bytes, stream: int) -> None:
        """Add a frame behind all data of its request."""
        queue = self._queues.setdefault(stream, _RequestQueue())
        queue.frames.append(frame)
        queue.size += len(frame)
        if queue.size > _SHORT_BYTES:
            self.started(stream)  # otherwise the data would wait for its own command

    def starts(self, command: int) -> None:
        """Hold long data back until `started`, within the bounds that the class describes."""
        self._starting[command] = monotonic() + _HOLD_SECONDS

    def started(self, command: int) -> bool:
        """End what `starts` began, if it did; return whether data that was held back may now be written."""
        known = self._starting.pop(command, None) is not None
        return known and not self._starting and self._held_since is not None

    @property
    def is_beside_commands(self) -> bool:
        """Whether commands start, or started a moment ago."""
        return bool(self._starting) or monotonic() < self._free_until

    def hold(self) -> float:
        """Return for how many seconds long data must still wait; 0 if it may be written."""
        now, since, starting = monotonic(), self._held_since, self._starting
        while starting and starting[oldest := next(iter(starting))] <= now:
            del starting[oldest]
        if since is None:
            if not starting or now < self._free_until:
                return 0.0
            self._held_since = since = now
        end = min(since + _HOLD_SECONDS, next(reversed(starting.values()), now))
        if end > now:
            return end - now
        self._held_since, self._free_until = None, now + min(now - since, _HOLD_SECONDS)
        return 0.0

    async def room(self, stream: int) -> None:
        """Wait while more than 128 KiB of a request are queued, unless the queue is closed."""
        while (queue := self._queues.get(stream)) and queue.size > _TURN_BYTES and not self._closed:
            queue.shrunk.clear()
            await queue.shrunk.wait()

    def take(self) -> Sequence[bytes]:
        """Remove and return the frames to write next: all short ones, or one request's turn.

        Returns none if only data that is held back waits; `hold` returns for how long.
        """
        if self._first:
            first, self._first = self._first, deque()
            return first
        held = any(each.size > _SHORT_BYTES for each in self._queues.values()) and self.hold() > 0
        ready = (
            number
            for number, queue in self._queues.items()
            if not held or queue.begins or queue.size <= _SHORT_BYTES
        )
        stream = next(ready, None)
        if stream is None:
            return ()
        queue = self._queues.pop(stream)
        queue.begins = False  # the frame that begins the request is the first of this turn
        taken: list[bytes] = []
        size = 0
        while queue.frames and size < _TURN_BYTES:
            taken.append(queue.frames.popleft())
            size += len(taken[-1])
        if queue.frames:
            queue.size -= size
            self._queues[stream] = queue
        queue.shrunk.set()
        return taken

    def close(self) -> None:
        """Wake all waiting `room` calls, and let later ones return at once."""
        self._closed = True
        for queue in self._queues.values():
            queue.shrunk.set()


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
