"""The link layer below the frames: a byte stream to an agent that survives broken connections.

agent/PROTOCOL.md describes its records. Each record carries its stream offset. Data that is lost with a
connection is retransmitted over the next one, and duplicates are dropped.
"""

import asyncio
import secrets
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Self

import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import SandboxError, SandboxNotFoundError
from sandboxkit.providers._agent.failures import ProtocolError
from sandboxkit.providers._agent.frames import PROTOCOL_VERSION
from sandboxkit.providers._agent.unix import UnixStream

BROKEN = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
"""The exceptions that a broken or closed stream raises."""

Reopen = Callable[[], Awaitable[ByteStream]]

MAGIC = b"SBXL"
OPENING = struct.Struct(">4sB16s?IQ")
OPENING_REPLY = struct.Struct(">4sBBQ")
RECORD = struct.Struct(">BQI")
DATA, ACK, PING, CLOSE = range(4)
OPENED, RESUMED = range(2)

_RECEIVE_BYTES = 256 << 10
_PIECE_BYTES = 1 << 20
_AT_ONCE = 16 << 10
_KEEP_BYTES = 4 << 20
"""Maximum number of unacknowledged bytes that are kept; a sender waits above it."""
_RECORDS_IN_A_ROW = 64
"""How many records of one link are handled before other tasks run."""
_MOST_REPEATED = 1000
"""How many records in a row may bring nothing new; a proxy may send data twice."""
_ACK_BYTES = 5 << 19
"""Number of received bytes after which an ACK is due. An ACK is also sent with each DATA record."""
_REPLY_SECONDS, _LEAVE_SECONDS = 8.0, 1.0
_READ_SECONDS = 2.0
"""How long (s) an agent may leave a record unread; what it sends after that is no sign of life."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_LASTS = 10.0
"""A connection that held for so many seconds was of use, even if it was idle."""


class LostSessionError(Exception):
    """The agent no longer has the session: the grace period expired, or it is a different agent."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first bytes of a session, which travel with the request that starts the agent."""

    id: bytes
    """The id of the session."""
    payload: bytes
    """The first bytes of the session's stream."""
    data: bytes
    """All bytes to send: the opening and the record with `payload`."""
    first: bytes = b""
    """The payload of an EXEC that is sent along, see `AgentClient.start`; b"" for none."""
    has_first: bool = False
    """Whether `payload` ends with that EXEC; otherwise it is sent on the stream."""

    @classmethod
    def of(cls, payload: bytes, grace: float, *, first: bytes = b"") -> Self:
        """Return the greeting of a new session whose stream begins with `payload`; `grace` in seconds.

        `first` is the payload of the EXEC at the end of `payload`, if there is one.
        """
        session = secrets.token_bytes(16)
        opening = _opening(session, grace, resume=False, received=0)
        data = opening + RECORD.pack(DATA, 0, len(payload)) + payload
        return cls(session, payload, data, first, bool(first))


class Link:
    """One session with an agent, over `stream` and its replacements.

    A broken stream is replaced for up to `grace` seconds; without a grace the session ends with its
    stream. One task receives, and one sends. `fall_silent`: streams may break without an error, see
    `Heartbeat`.
    """

    def __init__(
        self,
        stream: ByteStream,
        *,
        grace: float = 0.0,
        reopen: Reopen | None = None,
        fall_silent: bool = True,
        greeting: Greeting | None = None,
    ) -> None:
        """`greeting` is the one that the agent already received, if any; its grace must be `grace`."""
        self.last_received = time.monotonic()
        """The monotonic time at which the last bytes from the agent arrived."""
        self.grace = grace if reopen is not None else 0.0
        self.falls_silent = self.grace > 0 and fall_silent
        self._reopen = reopen
        self._id = secrets.token_bytes(16) if greeting is None else greeting.id
        self._stream: ByteStream | None = stream
        self._confirmed = self._closed = self._leaving = False
        self._begin = b""
        """The unsent opening. It is sent with the first data, because at some vendors each call costs a
        round trip."""
        self._buffer = b""
        """An incomplete record header, or an incomplete reply to the opening."""
        self._unread = False
        """Whether the buffer may have whole records."""
        self._left = 0
        """Number of bytes of the current record's payload that have yet to arrive."""
        self._old = 0
        """Number of those bytes, at their front, that are duplicates; a proxy may send data twice."""
        self._repeated = self._received = self._acknowledged = self._sent = 0
        self._writing_since = inf
        self._kept = bytearray()
        if greeting is not None:
            self._sent = len(greeting.payload)
            self._kept += greeting.payload if self.grace else b""
        self._moved_then = -1, -1
        """What both sides had received when the grace began; an answer alone does not begin it again."""
        self._grace_began, self._pause = 0.0, _FIRST_PAUSE
        self._resumed = time.monotonic()
        """When the present connection began."""
        self._room = anyio.Event()
        self._back = anyio.Event()
        """Set when a broken connection has been replaced, or the link is closed."""
        self._writing = anyio.Lock(fast_acquire=True)
        self._receiver: asyncio.Task[object] | None = None
        """The task that waits in a stream's `receive`; `give_up` wakes it."""
        self._given_up = False
        self._held: anyio.Event | None = None
        """Set at the end of a hold; None unless the link is held."""

    @property
    def held(self) -> bool:
        """Whether the agent's machine is paused, so that a broken connection is not replaced."""
        return self._held is not None

    def hold(self, held: bool) -> None:
        """Begin or end a hold, which does not count towards the grace. Idempotent."""
        if held and self._held is None:
            self._held = anyio.Event()
        elif not held and self._held is not None:
            self._held.set()
            self._held = None
            self.give_up()  # it may have broken without a sign

    @property
    def moved(self) -> tuple[int, int]:
        """How many bytes of the stream were sent and received; bytes that are sent again count once."""
        return self._sent, self._received

    def open(self) -> None:
        """Send the session's opening with the next data, unless the greeting contained it.

        `receive` handles the agent's reply.
        """
        if not self._sent:
            self._begin = _opening(self._id, self.grace, resume=False, received=0)

    async def receive(self) -> Sequence[bytes | memoryview]:
        """Return the next bytes of the stream in one or more pieces, in order and without duplicates.

        Raises one of BROKEN at the session's end, LostSessionError or a SandboxError if the session
        cannot be resumed, and ProtocolError for a malformed record.
        """
        while True:
            stream = self._stream
            if self._closed or stream is None:
                raise anyio.ClosedResourceError
            try:
                if self._unread:
                    await asyncio.sleep(0)
                    chunk = b""
                else:
                    chunk = await self._chunk(stream)
                    if (now := time.monotonic()) < self._writing_since + _READ_SECONDS:
                        self.last_received = now
            except BROKEN:
                if not self.grace or self._closed or self._leaving or not self._confirmed:
                    raise
                await self._resume(stream)
                continue
            if data := self._take(chunk):
                return data

    async def _chunk(self, stream: ByteStream) -> bytes:
        if not self.grace:
            return await stream.receive(_RECEIVE_BYTES)
        # A cancel scope would do the same, but doubles the cost of receiving a piece.
        self._given_up, self._receiver = False, asyncio.current_task()
        try:
            return await stream.receive(_RECEIVE_BYTES)
        except asyncio.CancelledError:
            if self._given_up and self._receiver is not None and not self._receiver.uncancel():
                raise anyio.BrokenResourceError from None
            raise
        finally:
            self._receiver = None

    async def send(self, *parts: bytes) -> None:
        """Send bytes. With a grace, a broken connection is no error: the bytes are kept and resent.

        Only one task may send; a resumption may write at the same time.
        """
        size = sum(map(len, parts))
        if not self.grace and size <= _PIECE_BYTES:
            record = b"".join((RECORD.pack(DATA, self._sent, size), *parts))
            self._sent += size
            await self._write(record)
            return
        data = b"".join(parts)
        for at in range(0, size, _PIECE_BYTES):
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
        """Send bytes without a task switch; return False, without sending anything, if it might block.

        Must not be called while another task sends. Raises one of BROKEN.
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
        """Whether `acknowledge` is due. The sending task calls it, because the receiver must never block."""
        return self.grace > 0 and self._received - self._acknowledged >= _ACK_BYTES

    async def acknowledge(self) -> None:
        """Acknowledge all received bytes, so that the agent can drop its copy."""
        async with self._writing:
            self._acknowledged = self._received
            await self._write(RECORD.pack(ACK, self._received, 0))

    @property
    def is_between(self) -> bool:
        """Whether a broken connection is being replaced."""
        return self._stream is None and not self._closed

    async def connected(self) -> None:
        """Wait while a broken connection is being replaced."""
        while self.is_between:
            await self._back.wait()

    async def ping(self) -> None:
        """Send a PING; the agent's reply updates `last_received`."""
        async with self._writing:
            await self._write(RECORD.pack(PING, self._received, 0))

    async def leave(self) -> None:
        """Send CLOSE to end the session; `receive` still returns data that the agent sends before the end.

        Raises one of BROKEN if there is no connection, and TimeoutError if the agent does not read for a second.
        """
        self._leaving = True
        if self.is_between:
            raise anyio.BrokenResourceError
        with anyio.fail_after(_LEAVE_SECONDS):
            async with self._writing:
                await self._write(RECORD.pack(CLOSE, self._sent, 0))

    def give_up(self) -> None:
        """Treat the current connection as broken: `receive` then replaces it."""
        if self._receiver is not None and not self._given_up:
            self._given_up = True
            self._receiver.cancel()

    async def aclose(self) -> None:
        """End the session; the agent cancels its requests in progress. Idempotent."""
        stream, self._stream = self._stream, None
        if self._closed:
            return
        self._closed = True
        self._room.set()
        self._back.set()
        if stream is None:
            return
        with anyio.CancelScope(shield=True):
            if self.grace:
                with anyio.move_on_after(0.5):
                    try:
                        await stream.send(RECORD.pack(CLOSE, self._sent, 0))
                    except (*BROKEN, anyio.BusyResourceError):
                        pass  # the agent also ends the session at EOF, after the grace
            await anyio.aclose_forcefully(stream)

    async def _write(self, record: bytes) -> None:
        """Write one record; the caller holds `_writing`, so records never interleave."""
        stream = self._stream
        if stream is None:
            if self._closed:
                raise anyio.ClosedResourceError
            return  # the connection is being replaced, and `_reconnect` resends
        begin, self._begin = self._begin, b""
        try:
            self._writing_since = time.monotonic()
            await stream.send(begin + record if begin else record)
        except BROKEN:
            if not self.grace:
                raise
            # A later record on this connection would leave a gap; the receiver opens a new connection.
            await anyio.aclose_forcefully(stream)
        finally:
            self._writing_since = inf

    def _take(self, chunk: bytes) -> Sequence[bytes | memoryview]:
        """Return the payload bytes in `chunk`, which may begin and end within a record.

        Of more than `_RECORDS_IN_A_ROW` records the rest stays in the buffer: other tasks run first.
        """
        if self._left and not self._old and len(chunk) <= self._left:
            self._left -= len(chunk)
            self._received += len(chunk)
            return [chunk]
        data, at = (self._buffer + chunk if self._buffer else chunk), 0
        self._unread, records = False, 0
        view = memoryview(data)
        parts: list[memoryview] = []
        if not self._confirmed:
            self._buffer = data
            if len(data) < OPENING_REPLY.size:
                return []
            self._check(data[: OPENING_REPLY.size])
            at = OPENING_REPLY.size
        while True:
            if self._old:
                skipped = min(self._old, len(data) - at)
                at += skipped
                self._old -= skipped
                self._left -= skipped
            if self._left and at < len(data):
                part = view[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                self._received += len(part)
            if len(data) - at < RECORD.size:
                break
            if records == _RECORDS_IN_A_ROW:
                self._unread = True
                break
            records += 1
            if data.startswith(MAGIC, at):  # a proxy repeated the reply to the opening
                if len(data) - at < OPENING_REPLY.size:
                    break
                at += OPENING_REPLY.size
                continue
            kind, offset, size = RECORD.unpack_from(data, at)
            at += RECORD.size
            if kind == DATA:
                if offset > self._received:
                    raise ProtocolError(f"received byte {offset}, expected byte {self._received}")
                if not size:
                    raise ProtocolError("a record of no data")
                self._left, self._old = size, min(size, self._received - offset)
                self._count(is_new=self._old < size)
            elif kind == ACK:
                self._count(is_new=self._forget(offset))
            else:
                raise ProtocolError(f"unknown record type {kind}")
        self._buffer = data[at:]
        return parts

    def _check(self, reply: bytes) -> int:
        """Check the agent's reply to an opening; return how many bytes the agent has received."""
        magic, version, verdict, received = OPENING_REPLY.unpack(reply)
        if magic != MAGIC:
            raise ProtocolError(f"{reply!r} is not an agent's reply")
        if version != PROTOCOL_VERSION:
            raise ProtocolError(f"the agent uses version {version}, not {PROTOCOL_VERSION}")
        if verdict not in (OPENED, RESUMED):
            raise LostSessionError("the agent no longer has this session")
        self._confirmed = True
        return int(received)

    def _count(self, *, is_new: bool) -> None:
        """Raise ProtocolError after too many records in a row that bring nothing new."""
        self._repeated = 0 if is_new else self._repeated + 1
        if self._repeated > _MOST_REPEATED:
            raise ProtocolError(f"more than {_MOST_REPEATED} records that bring nothing new")

    def _forget(self, offset: int) -> bool:
        """Drop the kept bytes before `offset`, which the agent has acknowledged; return whether there are any."""
        if offset > self._sent:
            raise ProtocolError(
                f"the agent acknowledged {offset} bytes, but only {self._sent} were sent"
            )
        missing = self._sent - offset
        if is_new := missing < len(self._kept):
            del self._kept[: len(self._kept) - missing]
            self._room.set()
        return is_new

    async def _resume(self, broken: ByteStream) -> None:
        """Resume the session over a new connection; raise the last error when the grace is over."""
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(
                broken
            )  # first, or a blocked writer would hold the lock for ever
        async with self._writing:
            self._stream, self._back = None, anyio.Event()
        if self._has_moved() or time.monotonic() > self._resumed + _LASTS:
            self._restart_grace()
        elif self._held is None:
            await self._wait_for_next()  # it was resumed and broke at once, with nothing in between
        while True:
            if self._held is not None:
                await self._held.wait()
                self._restart_grace()
            try:
                await self._reconnect()
                self._resumed = time.monotonic()
                return
            except (*BROKEN, OSError, SandboxError) as error:
                if self._held is not None:
                    continue
                lasting = isinstance(error, SandboxNotFoundError) or (
                    isinstance(error, SandboxError) and not error.retryable
                )
                if self._has_moved():
                    self._restart_grace()
                if lasting or self._closed or self._is_late():
                    raise
            await self._wait_for_next()

    def _has_moved(self) -> bool:
        """Return whether either side has received anything new since the grace began."""
        return self._moved_then != (self._received, self._sent - len(self._kept))

    def _restart_grace(self) -> None:
        self._moved_then = self._received, self._sent - len(self._kept)
        self._grace_began, self._pause = time.monotonic(), _FIRST_PAUSE

    def _is_late(self) -> bool:
        return time.monotonic() > self._grace_began + self.grace

    async def _wait_for_next(self) -> None:
        """Wait before the next attempt. Raises BrokenResourceError if the grace is over."""
        if self._is_late():
            raise anyio.BrokenResourceError
        await anyio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    async def _reconnect(self) -> None:
        assert self._reopen is not None
        stream: ByteStream | None = None
        try:
            with anyio.fail_after(_REPLY_SECONDS):
                stream = await self._reopen()
                self._buffer, self._unread, self._left, self._old = b"", False, 0, 0
                await stream.send(
                    _opening(self._id, self.grace, resume=True, received=self._received)
                )
                while len(self._buffer) < OPENING_REPLY.size:
                    self._buffer += await stream.receive(_RECEIVE_BYTES)
                received = self._check(self._buffer[: OPENING_REPLY.size])
                self._buffer = self._buffer[OPENING_REPLY.size :]
                self._unread = bool(self._buffer)
                self.last_received = time.monotonic()
                self._forget(received)
                self._acknowledged = self._received
                async with self._writing:
                    # First retransmit the data that the agent has not received.
                    first = self._sent - len(self._kept)
                    for at in range(0, len(self._kept), _PIECE_BYTES):
                        piece = bytes(self._kept[at : at + _PIECE_BYTES])
                        await stream.send(RECORD.pack(DATA, first + at, len(piece)) + piece)
                    if self._closed:
                        raise anyio.ClosedResourceError
                    self._stream = stream
                    self._back.set()
        except BaseException:
            if stream is not None:
                with anyio.CancelScope(shield=True):
                    await anyio.aclose_forcefully(stream)
            raise


def _opening(session: bytes, grace: float, *, resume: bool, received: int) -> bytes:
    return OPENING.pack(MAGIC, PROTOCOL_VERSION, session, resume, round(grace * 1000), received)
