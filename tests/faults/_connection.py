"""One connection through the proxy: bytes both ways, and the fault of each exchange."""

import asyncio
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tests.faults._plan import Direction, Drop, Fault, Half, HttpAnswer, Late, Reset, Stall

CHUNK = 64 * 1024
_HEAD_LIMIT = 64 * 1024
_LINGER = 2.0
"""Seconds for a client to read an answer that came before its request was read."""
_REQUEST_LINE = re.compile(rb"[A-Z]{3,8} \S+ HTTP/1\.[01]\r\n")
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


class Gate:
    """Whether anything passes, in each direction; stalls wait here for `heal`."""

    def __init__(self) -> None:
        self._open = {"request": asyncio.Event(), "answer": asyncio.Event()}
        self._healed = asyncio.Event()
        self.heal()

    def close(self, direction: Direction) -> None:
        """Let nothing pass from now on."""
        for name, event in self._open.items():
            if direction in (name, "both"):
                event.clear()

    def open(self) -> None:
        """Let everything pass again that waits in `passage`."""
        for event in self._open.values():
            event.set()

    def heal(self) -> None:
        """Let everything pass that waits."""
        self.open()
        self._healed.set()
        self._healed = asyncio.Event()

    async def passage(self, direction: str) -> None:
        """Return once bytes may pass."""
        await self._open[direction].wait()

    async def healed(self, seconds: float | None) -> None:
        """Return at the next `heal`, or after so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._healed.wait(), seconds)


class Connection:
    """A client's connection and the one to the real server that was made for it.

    A read waits until what was read before has been written: no more than a chunk and the
    transports' own small buffers are held, whatever the streams' sizes.
    """

    def __init__(
        self,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        gate: Gate,
        choose: Callable[[str], Fault | None],
    ) -> None:
        self._near, self._far = near, far
        self._gate = gate
        self._choose = choose
        self._fault: Fault | None = None
        self._begun = False
        self._may_begin = True
        """Whether the client's next bytes can be the beginning of an exchange."""
        self._raw = False
        self._answered = 0
        self._answers_over = False
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Return when both directions have ended, or a fault has ended them."""
        ended = asyncio.create_task(self._ended.wait())
        both = asyncio.create_task(self._both())
        tasks: list[asyncio.Task[object]] = [both, ended]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if both.done():
                both.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for _, writer in (self._near, self._far):
                writer.close()
            for _, writer in (self._near, self._far):
                # What is in its buffer is sent first; after a reset there is nothing.
                with suppress(OSError):
                    await writer.wait_closed()

    def reset(self) -> None:
        """Break it, both ways, at once."""
        for _, writer in (self._near, self._far):
            _reset(writer)
        self._ended.set()

    async def _both(self) -> None:
        await asyncio.gather(self._way(self._requests), self._way(self._answers))

    async def _way(self, pump: Callable[[], Awaitable[None]]) -> None:
        try:
            await pump()
        except OSError:
            self.reset()  # as one end broke, so must the other

    async def _requests(self) -> None:
        reader, writer = self._near[0], self._far[1]
        while data := await reader.read(CHUNK):
            await self._gate.passage("request")
            if self._may_begin and not self._raw:
                data = await self._whole_head(data)
                is_http = _REQUEST_LINE.match(data) is not None
                if is_http or not self._begun:
                    await self._begin(data, is_http)
            if self._ended.is_set():
                return
            writer.write(data)
            await writer.drain()
        await self._gate.passage("request")
        writer.write_eof()

    async def _whole_head(self, data: bytes) -> bytes:
        """Read on to the end of an HTTP/1 request's head, if this is the beginning of one."""
        if _REQUEST_LINE.match(data):
            while b"\r\n\r\n" not in data and len(data) < _HEAD_LIMIT:
                more = await self._near[0].read(CHUNK)
                if not more:
                    break
                data += more
        return data

    async def _begin(self, data: bytes, is_http: bool) -> None:
        self._begun, self._may_begin = True, False
        # After an upgrade the connection is the answer's to its end, and so is what is not HTTP.
        self._raw = not is_http or bool(_UPGRADE.search(data.partition(b"\r\n\r\n")[0] + b"\r\n"))
        line = data.partition(b"\r\n")[0].decode("latin-1") if is_http else ""
        fault = self._fault = self._choose(line)
        self._answered = 0
        match fault:
            case Reset():
                self.reset()
            case HttpAnswer() if is_http:
                await self._answer(fault)
            case HttpAnswer():
                self.reset()
            case Late():
                await asyncio.sleep(fault.seconds)
            case Stall("request" | "both"):
                await self._gate.healed(fault.seconds)

    async def _answer(self, fault: HttpAnswer) -> None:
        reader, writer = self._near
        if self._answers_over:  # the server has closed already, and the client has been told
            self._end()
            return
        fields = {**fault.headers, "Content-Length": str(len(fault.body)), "Connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"HTTP/1.1 {fault.status} Fault\r\n{head}\r\n".encode() + fault.body)
        await writer.drain()
        writer.write_eof()
        # Closed with unread input, the kernel would reset it and take the answer along.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                while await reader.read(CHUNK):
                    pass
        self._far[1].transport.abort()
        self._ended.set()

    async def _answers(self) -> None:
        reader, writer = self._far[0], self._near[1]
        while data := await reader.read(CHUNK):
            await self._gate.passage("answer")
            match self._fault:
                case Drop(then):
                    await self._drop(then)
                    return
                case Stall("answer") as stall if self._answered == 0:
                    await self._gate.healed(stall.seconds)
                case Half(size) if self._answered + len(data) >= size:
                    writer.write(data[: size - self._answered])
                    await writer.drain()
                    self._end()
                    return
            self._answered += len(data)
            self._may_begin = True
            writer.write(data)
            await writer.drain()
        await self._gate.passage("answer")
        self._answers_over = True
        if writer.can_write_eof():
            writer.write_eof()
        else:  # TLS has no half-close
            self._end()

    async def _drop(self, then: str) -> None:
        if then == "reset":
            self.reset()
            return
        if then == "stall":
            await self._gate.healed(None)
        self._end()

    def _end(self) -> None:
        """Close both ends; the client still gets what it was sent."""
        self._far[1].transport.abort()
        self._ended.set()


def _reset(writer: asyncio.StreamWriter) -> None:
    end = writer.get_extra_info("socket")
    if end is not None and end.family != socket.AF_UNIX:
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
