"""The link under the frames: a byte stream to an agent that may outlive its connections.

agent/PROTOCOL.md describes its records. Each says where in the stream it belongs, so what a broken
connection lost is sent again over the next one, and nothing arrives twice.
"""

import asyncio
import secrets
import struct
import time
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import SandboxError, SandboxNotFoundError
from sandboxkit.providers._agent.frames import PROTOCOL_VERSION, ProtocolError
from sandboxkit.providers._agent.unix import UnixStream

__all__ = ["BROKEN", "Link", "LostSessionError", "Reopen"]

BROKEN = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
"""What a stream raises that does not carry any more."""

Reopen = Callable[[], Awaitable[ByteStream]]

MAGIC = b"SBXL"
OPENING = struct.Struct(">4sB16s?IQ")
ANSWER = struct.Struct(">4sBBQ")
RECORD = struct.Struct(">BQI")
DATA, ACK, PING, CLOSE = range(4)
OPENED, RESUMED = range(2)

_RECEIVE_BYTES = 256 << 10
_PIECE_BYTES = 1 << 20
_AT_ONCE = 16 << 10
_KEEP_BYTES = 4 << 20
"""Unacknowledged bytes that are kept; above it a sender waits."""
_ACK_BYTES = 5 << 19
"""Received bytes that are acknowledged at the latest; with whatever is sent, those that there are."""
_ANSWER_SECONDS = 8.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


class LostSessionError(Exception):
    """The agent does not know the session any more: its grace was over, or it is another agent."""


class Link:
    """One session with an agent, over `stream` and, while `grace` seconds allow it, over others.

    Without a grace it ends with its stream. One task receives, and one sends.
    """

    def __init__(
        self, stream: ByteStream, *, grace: float = 0.0, reopen: Reopen | None = None
    ) -> None:
        self.heard = time.monotonic()
        """When the agent was last heard of."""
        self.grace = grace if reopen is not None else 0.0
        self._reopen = reopen
        self._id = secrets.token_bytes(16)
        self._stream: ByteStream | None = stream
        self._answered = self._closed = False
        self._buffer = b""
        """What has come of a record's head, or of the agent's answer."""
        self._left = 0
        """Bytes that are still due of a record whose head has come."""
        self._received = self._acknowledged = self._sent = 0
        self._kept = bytearray()
        self._room = anyio.Event()
        self._writing = anyio.Lock(fast_acquire=True)
        self._receiver: asyncio.Task[object] | None = None
        """Who waits for a stream, which `give_up` wakes."""
        self._given_up = False

    async def open(self) -> None:
        """Begin the session; the agent's answer comes before the first thing received."""
        assert self._stream is not None
        await self._stream.send(self._opening(resume=False))

    async def receive(self) -> bytes:
        """The next bytes, each once and in order.

        Raises one of BROKEN at the session's end, LostSessionError where it could not be carried on,
        or a SandboxError that says why, and ProtocolError for what is not a link's.
        """
        while True:
            stream = self._stream
            if self._closed or stream is None:
                raise anyio.ClosedResourceError
            try:
                if self._buffer and (data := self._take(b"")):
                    return data  # what came behind an answer
                chunk = await self._chunk(stream)
            except BROKEN:
                if not self.grace or self._closed or not self._answered:
                    raise
                await self._resume(stream)
                continue
            self.heard = time.monotonic()
            if data := self._take(chunk):
                return data

    async def _chunk(self, stream: ByteStream) -> bytes:
        if not self.grace:
            return await stream.receive(_RECEIVE_BYTES)
        # A cancel scope says the same, and costs as much as the rest of a piece's way.
        self._given_up, self._receiver = False, asyncio.current_task()
        try:
            return await stream.receive(_RECEIVE_BYTES)
        except asyncio.CancelledError:
            if self._given_up and self._receiver is not None and not self._receiver.uncancel():
                raise anyio.BrokenResourceError from None
            raise
        finally:
            self._receiver = None

    async def send(self, data: bytes) -> None:
        """Send bytes. With a grace, a broken connection is no error: they are kept.

        All that sends is one task; only a resumption writes beside it.
        """
        if not self.grace and len(data) <= _PIECE_BYTES:
            record = RECORD.pack(DATA, self._sent, len(data)) + data
            self._sent += len(data)
            await self._write(record)
            return
        for at in range(0, len(data), _PIECE_BYTES):
            piece = data[at : at + _PIECE_BYTES]
            async with self._writing:
                record = RECORD.pack(DATA, self._sent, len(piece)) + piece
                self._sent += len(piece)
                if self.grace:
                    self._kept += piece
                    if self._acknowledged != self._received:
                        self._acknowledged = self._received
                        record = RECORD.pack(ACK, self._received, 0) + record
                await self._write(record)
            while len(self._kept) > _KEEP_BYTES and not self._closed:
                self._room = anyio.Event()
                await self._room.wait()

    def send_now(self, data: bytes) -> bool:
        """Send bytes without a task's switch, where that cannot wait; while nobody else sends.

        Raises one of BROKEN.
        """
        stream = self._stream
        if self.grace or len(data) > _AT_ONCE or not isinstance(stream, UnixStream):
            return False
        if not stream.send_now(RECORD.pack(DATA, self._sent, len(data)) + data):
            return False
        self._sent += len(data)
        return True

    @property
    def owes(self) -> bool:
        """Whether `acknowledge` is due. Its caller is not who receives: that one never waits."""
        return self.grace > 0 and self._received - self._acknowledged >= _ACK_BYTES

    async def acknowledge(self) -> None:
        """Let the agent forget what was received."""
        async with self._writing:
            self._acknowledged = self._received
            await self._write(RECORD.pack(ACK, self._received, 0))

    async def ping(self) -> None:
        """Ask the agent for a sign of life, which moves `heard`."""
        async with self._writing:
            await self._write(RECORD.pack(PING, self._received, 0))

    def give_up(self) -> None:
        """Take the present connection for broken: nothing is heard on it."""
        if self._receiver is not None and not self._given_up:
            self._given_up = True
            self._receiver.cancel()

    async def aclose(self) -> None:
        """Leave; the agent ends what the session had in progress. Idempotent."""
        stream, self._stream = self._stream, None
        if self._closed:
            return
        self._closed = True
        self._room.set()
        if stream is None:
            return
        with anyio.CancelScope(shield=True):
            if self.grace:
                with anyio.move_on_after(0.5):
                    try:
                        await stream.send(RECORD.pack(CLOSE, self._sent, 0))
                    except (*BROKEN, anyio.BusyResourceError):
                        pass  # its end of file says it as well, once the grace is over
            await anyio.aclose_forcefully(stream)

    def _opening(self, *, resume: bool) -> bytes:
        milliseconds = round(self.grace * 1000)
        return OPENING.pack(MAGIC, PROTOCOL_VERSION, self._id, resume, milliseconds, self._received)

    async def _write(self, record: bytes) -> None:
        """Write while `_writing` is held: no record may come between the halves of another."""
        stream = self._stream
        if stream is None:
            if self._closed:
                raise anyio.ClosedResourceError
            return  # between two connections
        try:
            await stream.send(record)
        except BROKEN:
            if not self.grace:
                raise
            # No more over this one, which would leave a gap; the receiver makes another.
            await anyio.aclose_forcefully(stream)

    def _take(self, chunk: bytes) -> bytes:
        """The data in what has come, of whole records or not."""
        if self._left and len(chunk) <= self._left:
            self._left -= len(chunk)
            self._received += len(chunk)
            return chunk
        data, at = (self._buffer + chunk if self._buffer else chunk), 0
        parts: list[bytes] = []
        if not self._answered:
            self._buffer = data
            if len(data) < ANSWER.size:
                return b""
            self._check(data[: ANSWER.size])
            at = ANSWER.size
        while True:
            if self._left:
                part = data[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                self._received += len(part)
            if len(data) - at < RECORD.size:
                break
            kind, offset, size = RECORD.unpack_from(data, at)
            at += RECORD.size
            if kind == DATA:
                if offset != self._received:
                    raise ProtocolError(f"byte {offset} came where {self._received} is due")
                self._left = size
            elif kind == ACK:
                self._forget(offset)
            else:
                raise ProtocolError(f"unknown record type {kind}")
        self._buffer = data[at:]
        return b"".join(parts)

    def _check(self, answer: bytes) -> int:
        """What the agent has received, from its answer to an opening."""
        magic, version, verdict, received = ANSWER.unpack(answer)
        if magic != MAGIC:
            raise ProtocolError(f"{answer!r} is no agent's answer")
        if version != PROTOCOL_VERSION:
            raise ProtocolError(f"the agent speaks version {version}, not {PROTOCOL_VERSION}")
        if verdict not in (OPENED, RESUMED):
            raise LostSessionError("the agent does not know this session any more")
        self._answered = True
        return int(received)

    def _forget(self, offset: int) -> None:
        """The agent has everything before `offset`."""
        if offset > self._sent:
            raise ProtocolError(f"{offset} bytes acknowledged of {self._sent}")
        missing = self._sent - offset
        if missing < len(self._kept):
            del self._kept[: len(self._kept) - missing]
            self._room.set()

    async def _resume(self, broken: ByteStream) -> None:
        """Carry the session on over another connection, or raise why that cannot be."""
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(broken)  # first, or a writer would hold the lock for ever
        async with self._writing:
            self._stream = None
        since, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            try:
                await self._reconnect()
                return
            except (*BROKEN, OSError, SandboxError) as error:
                lasting = isinstance(error, SandboxNotFoundError) or (
                    isinstance(error, SandboxError) and not error.retryable
                )
                if self.heard > since:  # it went some way: the agent waits anew
                    since, pause = self.heard, _FIRST_PAUSE
                if lasting or self._closed or time.monotonic() > since + self.grace:
                    raise
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _reconnect(self) -> None:
        assert self._reopen is not None
        stream: ByteStream | None = None
        try:
            with anyio.fail_after(_ANSWER_SECONDS):
                stream = await self._reopen()
                self._buffer, self._left = b"", 0
                await stream.send(self._opening(resume=True))
                while len(self._buffer) < ANSWER.size:
                    self._buffer += await stream.receive(_RECEIVE_BYTES)
                received = self._check(self._buffer[: ANSWER.size])
                self._buffer = self._buffer[ANSWER.size :]
                self.heard = time.monotonic()
                self._forget(received)
                self._acknowledged = self._received
                async with self._writing:
                    # What was sent and did not arrive goes before anything new.
                    first = self._sent - len(self._kept)
                    for at in range(0, len(self._kept), _PIECE_BYTES):
                        piece = bytes(self._kept[at : at + _PIECE_BYTES])
                        await stream.send(RECORD.pack(DATA, first + at, len(piece)) + piece)
                    if self._closed:
                        raise anyio.ClosedResourceError
                    self._stream = stream
        except BaseException:
            if stream is not None:
                with anyio.CancelScope(shield=True):
                    await anyio.aclose_forcefully(stream)
            raise
