"""One program in a sandbox: its standard input and output as a byte stream.

Its output comes as events of the call that started it. Its input goes through one streaming call,
or, where a proxy on the way passes on none, in one call after the other, each with everything that
has gathered meanwhile. Calls at the same time would be faster, and the daemon puts them in no order;
and what comes in calls of its own, the daemon writes into its log.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable

import anyio
from connectrpc.code import Code
from connectrpc.errors import ConnectError

from sandboxkit.errors import ProviderUnavailableError, SandboxError
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers._hosted.pipe import Pipe
from sandboxkit.providers.e2b._answers import NAME
from sandboxkit.providers.e2b._machine import KEEP_ALIVE, Events, Machine
from sandboxkit.providers.e2b._wire import AnsweredError

__all__ = ["Program", "is_refusal"]

_PIECE = 256 << 10
"""Bytes of input in a message of a streaming call; the transport holds up to twenty of them."""
_CALL = 1 << 20
"""The same in a call of its own: a quarter of what servers of this protocol take by default."""
_HELD = 1 << 20
"""Bytes of output that wait for whoever receives; above it E2B waits, and then the program."""
_SAID = 2000
_LINGER_SECONDS = 1.0
"""How long E2B may take to say that a program has ended whose input has failed."""
_FLUSH_SECONDS = 1.0
"""How long a program may take to read the rest of its input, and to end with it."""
_WHAT = "start a program"


class Program(ProgramStream):
    """A program that has been asked for. It ends with the stream."""

    def __init__(self, machine: Machine, events: Events, *, streamed: bool) -> None:
        self.said = b""
        """The newest of what it has written to its standard error, or how it ended."""
        self.refused: ConnectError | None = None
        """What its input has failed with."""
        self._machine, self._streamed = machine, streamed
        self._input, self._output = Pipe(_CALL), Pipe(_HELD)
        self._pid = 0
        self._told = anyio.Event()
        self._ended = self._closed = False
        self._asked = self._heard = False
        self._broken: ConnectError | None = None
        self._following = asyncio.create_task(self._follow(events))
        self._feeding: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Wait until it runs. Raises what E2B says, ProviderUnavailableError if it says nothing."""
        with anyio.move_on_after(self._machine.answer):
            await self._told.wait()
            if self._pid:
                self._feeding = asyncio.create_task(self._feed())
                return
            raise self.failure()
        raise ProviderUnavailableError(
            f"e2b did not {_WHAT} within {self._machine.answer:g} s; check the network",
            provider=NAME,
            sandbox_id=self._machine.id,
        )

    def failure(self) -> SandboxError:
        """Why a program that has just begun carries nothing."""
        if self._broken is not None:
            return self._machine.translated(self._broken, _WHAT)
        said = self.said.decode(errors="replace").strip()
        return ProviderUnavailableError(
            f"e2b could not {_WHAT}: {said or 'its answer ended at once'}",
            provider=NAME,
            sandbox_id=self._machine.id,
        )

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = b"" if self._closed else await self._output.take(max_bytes)
        if self._closed:
            raise anyio.ClosedResourceError
        if data:
            self._heard = True
            return data
        if self._ended:
            raise anyio.EndOfStream
        raise anyio.BrokenResourceError from self._broken or self.refused

    async def send(self, item: bytes) -> None:
        if not self._asked:
            self._asked, self._heard = True, False
        view = memoryview(item)
        try:
            for start in range(0, len(item), _PIECE):
                await self._input.put(view[start : start + _PIECE])
        except anyio.BrokenResourceError:
            if self._closed:
                raise anyio.ClosedResourceError from None
            raise anyio.BrokenResourceError from self._broken or self.refused

    async def aclose(self) -> None:
        """Let the program read what was sent, and end; it is killed where it does not."""
        if self._closed:
            return
        self._closed = True
        self._input.close()
        self._output.close()
        if self._streamed and self._asked and not self._heard:
            self._machine.streams = None  # no answer: perhaps its input goes nowhere by now
        self._machine.leave(self._finish())

    async def _follow(self, events: Events) -> None:
        """Take the program's events until its end."""
        try:
            async for response in events:
                event = response.event.event if response.event is not None else None
                if event is None or event.field == "keepalive":
                    continue
                if event.field == "start":
                    self._pid = event.value.pid
                    self._told.set()
                elif event.field == "end":
                    self._ended = True
                    self.said = self.said or event.value.status.encode()[:_SAID]
                    return
                elif event.value.output is not None:
                    await self._deliver(event.value.output.field, event.value.output.value)
        except ConnectError as error:
            self._broken = error
        finally:
            self._output.close()
            self._input.close()
            self._told.set()
            await events.aclose()

    async def _deliver(self, name: str, data: bytes) -> None:
        if name == "stderr":
            self.said = (self.said + data)[-_SAID:]
            return
        try:
            await self._output.put(data)
        except anyio.BrokenResourceError:
            pass  # nobody receives any more, and the end is still of interest

    async def _feed(self) -> None:
        """Pass on the program's input until it is closed."""
        try:
            if self._streamed:
                await self._machine.stream(self._pid, self._pieces())
                if not self._input.closed:
                    raise ConnectError(Code.ABORTED, "the input was ended on its way")
            else:
                while data := await self._input.take(_CALL):
                    await self._machine.write(self._pid, data)
        except ConnectError as error:
            self.refused = error
            self._input.close()
            if not is_refusal(error):
                await asyncio.wait([self._following], timeout=_LINGER_SECONDS)
            self._output.close()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while True:
            data: bytes | None = None
            with anyio.move_on_after(KEEP_ALIVE):
                data = await self._input.take(_PIECE)
            if data == b"":
                return
            yield data or b""

    async def _finish(self) -> None:
        tasks = [self._following, *([self._feeding] if self._feeding is not None else [])]
        try:
            with anyio.move_on_after(self._machine.look):
                await self._told.wait()
            if self._pid and not (self._ended or self._broken or self.refused):
                await _quietly(self._drain(), _FLUSH_SECONDS)
            if self._pid and not self._ended:
                await _quietly(self._machine.kill(self._pid), self._machine.look)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _drain(self) -> None:
        if self._feeding is not None:
            await asyncio.wait([self._feeding])
        await self._machine.close_stdin(self._pid)
        await asyncio.wait([self._following])


async def _quietly(call: Awaitable[None], seconds: float) -> None:
    """What fails here has no one left whom it concerns."""
    try:
        with anyio.move_on_after(seconds):
            await call
    except ConnectError:
        pass


def is_refusal(error: ConnectError) -> bool:
    """Whether a call was answered by somebody who does not carry it out."""
    return error.code is Code.UNIMPLEMENTED or isinstance(error.__cause__, AnsweredError)
