"""A connection to one sandbox's agent: commands, file calls, their streams, and pings that find a silent agent."""

import asyncio
import errno
import os
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from math import inf
from typing import Self

import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import SandboxError
from sandboxkit.providers._agent import frames
from sandboxkit.providers._agent.exec_frame import KeptContents
from sandboxkit.providers._agent.failures import SILENT_AFTER as SILENT_AFTER
from sandboxkit.providers._agent.failures import (
    CallError,
    ConnectionEndedError,
    ProtocolError,
    SilentError,
)
from sandboxkit.providers._agent.frames import (
    Fields,
    FrameDecoder,
    Kind,
    Windows,
)
from sandboxkit.providers._agent.link import BROKEN, Greeting, Link, LostSessionError, Reopen
from sandboxkit.providers._agent.stream import (
    FINAL,
    OF_CALL,
    OF_COMMAND,
    OF_CONNECTION,
    AgentStream,
    SendQueue,
)

_TICK = 1.0
_PING_AFTER = 2.0
_REPLACED = 2
"""How many silent connections in a row are replaced before the requests on them fail."""
STARVED_AFTER = 120.0
"""SILENT_AFTER for an agent that is starved of CPU time or memory. Other processes of its sandbox can
starve it, so this time is bounded, too."""
_BUSY_SHARE = 0.1
"""An agent that ran or waited for a CPU for more than this share of a sampling interval counts as busy."""
_KEEP_OPEN = 15.0
"""Seconds between pings on an idle link with a grace; they show the agent that this client is alive."""


class Heartbeat:
    """Watches a link for silence while requests wait for its agent.

    Only time in which the event loop ran counts, because a blocked loop receives nothing. If streams
    can break without an error, a silent stream is replaced and an idle one pinged. Otherwise a broken
    stream ends visibly, so silence means that the agent hangs.
    """

    def __init__(
        self,
        link: Link,
        waits: Callable[[], bool],
        wake: Callable[[], None],
        silent: Callable[[], None],
        starved: Callable[[], bool],
    ) -> None:
        self.due = False
        """Whether the sending task must send a ping."""
        self._link, self._waits, self._wake, self._silent = link, waits, wake, silent
        self._starved = starved
        self._timer: asyncio.TimerHandle | None = None
        self._last_received = link.last_received
        self._quiet = self._since_ping = 0.0
        self._idle = True
        """Whether no request was waiting at the last tick."""
        self._replaced = 0
        """Number of silent connections replaced in a row without failing the requests."""

    def watch(self) -> None:
        """Begin to watch; watching ends by itself when no request waits any more."""
        if self._idle:
            self._quiet = self._since_ping = 0.0  # silence before the first request does not count
            self._idle = False
        if self._timer is None:
            self._arm()

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_TICK, self._tick)

    def _tick(self) -> None:
        self._timer = None
        waits = self._waits()
        self._idle = not waits
        if not waits and not self._link.falls_silent:
            return
        # A blocked loop ticks late and could not receive meanwhile: count one tick, not wall time.
        self._quiet += _TICK
        self._since_ping += _TICK
        if self._link.last_received != self._last_received:
            self._last_received, self._quiet, self._replaced = self._link.last_received, 0.0, 0
        if self._link.held or (self._link.is_between and not self._link.falls_silent):
            self._quiet = 0.0  # the stream ended; the link's grace bounds its replacement
        patience = SILENT_AFTER if waits else 3 * _KEEP_OPEN
        # Called two ticks early as well, because it compares with its last sample.
        starved = self._quiet >= patience - 2 * _TICK and self._starved()
        if self._quiet >= patience and (self._quiet >= STARVED_AFTER or not starved):
            self._quiet = 0.0  # later requests get the full time
            if self._link.falls_silent:
                self._link.give_up()
            # The requests can continue on another connection if the grace leaves enough time.
            enough = self._link.grace > (_REPLACED + 1) * SILENT_AFTER
            if self._link.falls_silent and enough and self._replaced < _REPLACED:
                self._replaced += 1
            else:
                self._replaced = 0
                self._silent()
        elif self._since_ping >= (_PING_AFTER if waits else _KEEP_OPEN) and self._quiet > 0:
            self._since_ping, self.due = 0.0, True
            self._wake()
        self._arm()


def is_held_up(pid: int) -> bool:
    """Return whether a thread of the process is runnable or in uninterruptible sleep (state R or D).

    A thread in state D waits for memory or a disk. Threads of a stopped, frozen or idle process are
    in neither state.
    """
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                state = file.read().rpartition(b") ")[2][:1]
            if state == b"R" or (state == b"D" and not _is_frozen(pid)):
                return True
    except OSError:
        pass  # the process has ended, as its stream will show, or its state cannot be read
    return False


def _is_frozen(pid: int) -> bool:
    """Return whether a cgroup v1 freezer froze the process. A v2 freezer leaves no thread in state D."""
    with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers == "freezer" and path != "/":  # the root is never frozen
                with open(f"/sys/fs/cgroup/freezer{path}/freezer.state", encoding="ascii") as state:
                    return state.read() != "THAWED\n"
    return False


@dataclass(frozen=True, slots=True)
class _ProcessSample:
    pid: int
    when: float
    busy: float
    """Seconds that its threads ran or waited for a processor, in total."""
    faults: int
    """Number of major page faults."""


class BusyDetector:
    """Detects whether a silent process is busy: held up now, or for much of the time since the last sample.

    A process that ran briefly and is idle again had time to respond, so its connection is at fault.
    """

    def __init__(self) -> None:
        self._seen: _ProcessSample | None = None

    def is_busy(self, pid: int) -> bool:
        """Take a sample; return whether the process is busy. The first sample always returns True.

        A stopped or frozen process is not busy.
        """
        before, now = self._seen, _look_at(pid)
        self._seen = now
        return (
            before is None
            or before.pid != pid
            or now.faults != before.faults
            or now.busy - before.busy > _BUSY_SHARE * (now.when - before.when)
            or is_held_up(pid)
        )


def _look_at(pid: int) -> _ProcessSample:
    busy = faults = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                fields = file.read().rpartition(b") ")[2].split()
            faults += int(fields[9])  # majflt
            with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                busy += sum(map(int, file.read().split()[:2]))
    except (OSError, IndexError, ValueError):
        pass  # the process has ended, or this kernel has no schedstat
    return _ProcessSample(pid, time.monotonic(), busy / 1e9, faults)


_KILL_PATIENCE = 2.0
"""Seconds in which a silent agent that is not starved must kill a command's process tree. After them the outcome is
unknown, so that a command's timeout holds whatever stalls."""
_LONG_KILL_PATIENCE = 7.0
"""Seconds in which an agent that answers must, since the tree may have many processes. One that takes longer is
ended from outside, where that is possible."""
_SLOW_KILL_PATIENCE = 15.0
"""Seconds in which one must that is starved or behind a network."""
_BEGIN_PATIENCE = 60.0
"""Seconds in which a newly started agent must send WELCOME."""

Force = Callable[[str], Awaitable[bool]]

MOST_ALONG = 8 << 10
"""The largest data in bytes that are sent along with the frame that begins their request."""

_TURNS_IN_A_ROW = 4
"""How many turns of data, of 128 KiB each, are written before other tasks run, if no command starts."""

_FRAMES_IN_A_ROW = 64
"""How many frames of one connection are handled before other tasks run."""


class AgentClient:
    """The client end of an agent's link. `start` makes one; it ends with the link."""

    def __init__(
        self, link: Link, windows: Windows, starved: Callable[[], bool], force: Force | None
    ) -> None:
        self.windows, self.starved, self._force = windows, starved, force
        self.ended: str | None = None
        """None while connected; then the agent's last message, or ""."""
        self.why_ended: SandboxError | None = None
        """The backend's error because of which the link could not be resumed; None if there is none."""
        self.boot = b""
        """Identifies this run of the agent: a restarted agent has another value."""
        self.workdir = ""
        """The default working directory of commands."""
        self.calls = b""
        """The operations that the agent knows, one byte each."""
        self.first: AgentStream | None = None
        """The request that was sent with HELLO, if there was one."""
        self._refused = False
        self.kept = KeptContents()
        self._link = link
        self._pending = asyncio.Event()
        self._pulse = Heartbeat(link, self._waits, self._pending.set, self._fall_silent, starved)
        self._streams: dict[int, AgentStream] = {}
        self._next_number = frames.FIRST_STREAM
        self._highest = 0
        """The highest number of a request so far."""
        self._outgoing = SendQueue()
        self._idle = False
        """Whether the writing task waits with an empty queue."""
        self._welcomed = anyio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls,
        stream: ByteStream,
        hello: bytes | Greeting,
        *,
        first: bytes = b"",
        patience: float = _BEGIN_PATIENCE,
        grace: float = 0.0,
        reopen: Reopen | None = None,
        fall_silent: bool = True,
        windows: Windows = frames.NEAR,
        starved: Callable[[], bool] = lambda: False,
        force: Force | None = None,
    ) -> Self:
        """Connect over `stream`, which is closed if the handshake fails.

        `hello` is the payload of the first frame, or the greeting with which the agent was started.
        `first` is the payload of an EXEC that is sent after HELLO without waiting for WELCOME; the
        attribute `first` is its stream. An agent that refuses HELLO does not carry it out.

        `reopen` opens another stream to the same agent. With it, a broken stream is replaced for up
        to `grace` seconds, transparently for requests. With `fall_silent` a stream on which nothing
        arrives is replaced, too. `windows` must be those that `hello` names. `starved` returns whether
        a silent agent is held up on its machine, and so gets more time. `force` is called with the reason
        if the agent does not kill a request in time: it ends the agent from outside, and returns whether it
        could. Raises ConnectionEndedError if the agent refuses or is absent, SilentError if it sends no
        WELCOME within `patience` seconds.
        """
        greeting = hello if isinstance(hello, Greeting) else None
        link = Link(stream, grace=grace, reopen=reopen, fall_silent=fall_silent, greeting=greeting)
        self = cls(link, windows, starved, force)
        # A connection outlives the call that made it, so no task group of that call can hold
        # these two tasks.
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        try:
            if not isinstance(hello, Greeting):
                self.post(frames.encode(Kind.HELLO, 0, hello), 0)
            if first:
                self.first = self._begun()
                if greeting is None or not greeting.has_first:
                    self.post(frames.encode(Kind.EXEC, self.first.number, first), self.first.number)
            with anyio.move_on_after(patience) as waited:
                await self._welcomed.wait()
            if waited.cancelled_caught:
                raise SilentError(f"no greeting within {patience:g} s")
            if self.ended is not None:
                raise ConnectionEndedError(self.ended, refused=self._refused)
            if self._link.falls_silent or self.first is not None:
                self._pulse.watch()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.aclose()
            raise
        return self

    @property
    def moved(self) -> tuple[int, int]:
        """How many bytes were sent and received so far."""
        return self._link.moved

    async def connected(self, seconds: float) -> bool:
        """Wait up to `seconds` while a broken connection is replaced; return whether the wait is over.

        It is over if the connection was replaced, or has ended for good; see `ended`.
        """
        if not self._link.is_between:
            return True
        with anyio.move_on_after(seconds) as waited:
            await self._link.connected()
        return not waited.cancelled_caught

    def settle(self) -> None:
        """Send a ping, from which the agent knows that the start is complete: its owner's grace begins."""
        self.ping_soon()

    def ping_soon(self) -> None:
        """Make the writing task send a ping."""
        self._pulse.due = True
        self._pending.set()

    def hold(self, held: bool) -> None:
        """Let requests outlive the pause of the agent's machine; see `Link.hold`."""
        self._link.hold(held)

    async def leave(self) -> bool:
        """Send CLOSE: this client disconnects for good. Return False if the link is broken."""
        try:
            await self._link.leave()
        except (*BROKEN, TimeoutError):
            return False
        return True

    async def finish(self, reason: str) -> None:
        """End the connection for a reason of the client's, which counts as the agent's last message."""
        self._end(reason)
        await self.aclose()

    async def aclose(self) -> None:
        """End both background tasks and close the stream. Idempotent."""
        self._end("the connection was closed")
        self._pulse.stop()
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        with anyio.CancelScope(shield=True):
            # Wait for both tasks before the close: the event loop would otherwise keep the
            # descriptor's number, and never watch the next file that gets this number.
            try:
                if others:
                    await asyncio.wait(others)
            finally:  # a task may be cancelled in spite of the scope
                await self._link.aclose()

    def post(self, frame: bytes, stream: int) -> None:
        """Send, or queue before all data, a frame that begins or controls a request; never wait."""
        if not self._try_send(frame):
            self._outgoing.put(frame, stream)
            self._pending.set()

    async def send_data(self, frame: bytes, stream: int) -> None:
        """Send a frame, or queue it behind its request's data; wait while the queue is full.

        Raises ConnectionEndedError.
        """
        await self._outgoing.room(stream)
        if self.ended is not None:
            raise ConnectionEndedError(self.ended)
        if not self._try_send(frame):
            self._outgoing.put_data(frame, stream)
            self._pending.set()

    def _try_send(self, frame: bytes) -> bool:
        """Send a frame now if the queue is empty and sending would not block; return whether it was sent."""
        if not self._idle or self._outgoing:
            return False
        try:
            return self._link.send_now(frame)
        except BROKEN:
            return False  # the next read or write reports it

    def open(
        self,
        kind: Kind,
        payload: bytes,
        data: bytes | None = None,
        *,
        most: float = inf,
        connection: bool = False,
    ) -> AgentStream:
        """Begin a request. Raises ConnectionEndedError, or ValueError if the payload is too large.

        `data` is all its data, at most `MOST_ALONG` bytes, which is sent along and finished. `connection`:
        it is a call that opens a port or a connection. More than `most` bytes of data in answer, or a frame that
        answers no such request, ends the link.
        """
        if self.ended is not None:
            raise ConnectionEndedError(self.ended)
        if len(payload) > frames.MAX_PAYLOAD:
            raise ValueError(
                f"a request of {len(payload)} bytes; {frames.MAX_PAYLOAD} is the limit"
            )
        of_call = OF_CONNECTION if connection else OF_CALL
        stream = self._begun(OF_COMMAND if kind == Kind.EXEC else of_call, most)
        sent = frames.encode(kind, stream.number, payload)
        if kind == Kind.EXEC:
            self._outgoing.starts(stream.number)
        if data is not None:
            sent += stream.whole(data)
        self.post(sent, stream.number)
        self._pulse.watch()
        return stream

    def _begun(self, expected: Collection[Kind] = OF_COMMAND, most: float = inf) -> AgentStream:
        number = self._next_number
        while number in self._streams:
            number = number % 0xFFFFFFFF + 1
        self._next_number = number % 0xFFFFFFFF + 1
        self._highest = max(self._highest, number)
        stream = self._streams[number] = AgentStream(self, number, expected, most)
        return stream

    def call(
        self,
        operation: int,
        arguments: bytes = b"",
        *,
        most: float = 0,
        connection: bool = False,
    ) -> AgentStream:
        """Begin a call, as `open` does; `connection`: one that opens a port or a connection to one.

        `most` is the largest answer in bytes, the result apart.

        Raises CallError with ENOSYS if the agent does not support it.
        """
        self.require(operation)
        payload = bytes([operation]) + arguments
        return self.open(Kind.CALL, payload, most=most, connection=connection)

    def require(self, operation: int) -> None:
        """Raise CallError with ENOSYS for an operation that the agent does not list.

        Such a call must not be sent: an old agent would end the connection, and with it every request.
        """
        if operation not in self.calls:
            raise CallError(errno.ENOSYS, f"unknown call {operation}")

    def kill_patience(self) -> float:
        """Return how long (s) to wait for a kill, given the agent's present state."""
        # It compares with its last sample, so ask it each time.
        if self.starved() or (self._link.falls_silent and not self._link.held):
            return _SLOW_KILL_PATIENCE
        return _LONG_KILL_PATIENCE if self._responds else _KILL_PATIENCE

    @property
    def _responds(self) -> bool:
        quiet = time.monotonic() - self._link.last_received
        return not self._link.held and quiet < _KILL_PATIENCE

    async def outlived(self, waited: float) -> None:
        """End an agent that did not end a request within `waited` seconds after its kill.

        Returns if the request ended with its whole sandbox, whose programs had left the agent no time. Raises
        ProtocolError if it ended so though the agent answers, and SilentError if nothing could be ended.
        """
        why, responds = f"it could not be killed within {waited:g} s", self._responds
        at_fault = responds or self.starved()
        forced = at_fault and self._force is not None and await self._force(why)
        if responds:
            await self.finish(why)
        if not forced:
            raise SilentError(why)
        if responds:
            raise ProtocolError(why)

    def _waits(self) -> bool:
        """Return whether a request that has not failed waits for the agent."""
        return any(not stream.silent for stream in self._streams.values())

    def _fall_silent(self) -> None:
        for stream in self._streams.values():
            stream.fall_silent()

    def _end(self, reason: str) -> None:
        if self.ended is None:
            self.ended = reason
        self._welcomed.set()
        self._outgoing.close()
        self._pending.set()
        for stream in self._streams.values():
            stream.connection_ended()

    async def _read(self) -> None:
        decoder, handled = FrameDecoder(), 0
        reason = ""
        try:
            while True:
                pieces = await self._link.receive()
                if self._link.owes:
                    self._pending.set()
                for frame in decoder.feed(*pieces):
                    handled += 1
                    if handled % _FRAMES_IN_A_ROW == 0:
                        await asyncio.sleep(0)
                    if frame.kind == Kind.BYE:
                        reason = Fields(frame.payload).text()
                        self._refused = not self._welcomed.is_set()
                    elif frame.kind == Kind.WELCOME and not self._welcomed.is_set():
                        fields = Fields(frame.payload)
                        fields.u32()
                        self.boot, self.workdir = fields.fixed(16), fields.text()
                        self.calls = fields.data()
                        self._welcomed.set()
                    elif (stream := self._streams.get(frame.stream)) is not None:
                        stream.deliver(frame)
                        if frame.kind in FINAL:
                            del self._streams[frame.stream]
                            if self._outgoing.started(frame.stream):
                                self._pending.set()
                    elif not 0 < frame.stream <= self._highest:  # what ended may still get some
                        raise ProtocolError(f"a frame {frame.kind.name} for no request")
        except (*BROKEN, LostSessionError):
            pass
        except SandboxError as error:
            self.why_ended = error
        except OSError as error:  # also a TimeoutError
            self.why_ended = SandboxError(f"no new connection in time: {error!r}")
        except ProtocolError as error:
            reason = error.reason
        except Exception as error:
            self.why_ended = SandboxError(f"the connection failed: {error!r}")
            raise
        finally:
            self._end(reason)
            await self.aclose()

    async def _write(self) -> None:
        turns = 0
        try:
            self._link.open()
            while self.ended is None:
                if self._pulse.due:
                    self._pulse.due = False
                    await self._link.ping()
                if self._link.owes:
                    await self._link.acknowledge()
                if not self._outgoing:
                    self._pending.clear()
                    if not self._pulse.due and not self._link.owes:
                        self._idle = True
                        await self._pending.wait()
                        self._idle = False
                    continue
                if taken := self._outgoing.take():
                    await self._link.send(*taken)
                    turns += 1
                    if turns % _TURNS_IN_A_ROW == 0 or self._outgoing.is_beside_commands:
                        await asyncio.sleep(0)  # let other tasks run even if no send has to wait
                else:
                    self._pending.clear()
                    with anyio.move_on_after(self._outgoing.hold()):
                        await self._pending.wait()
        except BROKEN:
            # The reading task ends the connection, once it has read the agent's last message.
            pass
        except Exception as error:
            # Otherwise callers would wait for requests that were never sent.
            self.why_ended = SandboxError(f"the connection failed: {error!r}")
            self._end("")
            raise
