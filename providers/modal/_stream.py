"""A program in a sandbox, by one call of Modal's: its standard input and output as a byte stream."""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from typing import Any

import anyio
import modal

from sandboxkit.errors import SandboxError
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers._hosted.pipe import Pipe
from sandboxkit.providers.modal._account import Account
from sandboxkit.providers.modal._errors import HANDLED

__all__ = ["Endings", "ExecStream"]

_PIECE = 2 << 20
"""Bytes of input in a call: a record of a link in one, and below the 4 MiB that gRPC servers take."""
_HELD = 1 << 20
"""Bytes of output that wait for whoever receives; above it Modal waits, and then the program."""
_SAID_BYTES = 2000
_SAID_SECONDS = 0.5
"""For what a program that has ended said last: something that it left behind may hold its stderr."""
_END_SECONDS = 2.0


class Endings:
    """The ends of programs that nobody waits for; each takes a bounded time."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, ending: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Carry one out, whatever becomes of the caller."""
        task = asyncio.create_task(ending)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settle(self) -> None:
        """Wait for all of them."""
        while self._tasks:
            await asyncio.wait(self._tasks)


class ExecStream(ProgramStream):
    """`open` starts a program; closing ends its input, since no call of Modal's kills one.

    The SDK repeats by itself what broke for a moment, input and output by their offsets. What it
    gives up after some ten seconds breaks the stream.
    """

    # Any: the SDK types a process as of text or of bytes, and its methods as synchronicity's own.
    def __init__(self, process: Any, endings: Endings) -> None:
        self.said = b""
        self._process, self._endings = process, endings
        self._output = Pipe(_HELD)
        self._why: Exception | None = None
        self._over = self._cut = False
        self._input = anyio.Lock()
        self._writing = anyio.CancelScope()
        self._hearer = asyncio.create_task(self._hear())
        self._reader = asyncio.create_task(self._read())
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, account: Account, handle: modal.Sandbox, argv: tuple[str, ...], endings: Endings
    ) -> "ExecStream":
        """Start a program. Cancelled meanwhile, it is ended as soon as it has started."""
        # The SDK forgets a call that is cancelled, and Modal carries it out.
        starting = asyncio.create_task(
            account.call(
                lambda: handle.exec.aio(*argv, text=False),
                what="run a program",
                sandbox_id=handle.object_id,
            )
        )
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            endings.begin(_end_started(starting))
            raise
        return cls(process, endings)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = b"" if self._ending is not None else await self._output.take(max_bytes)
        if self._ending is not None:
            raise anyio.ClosedResourceError
        if data:
            return data
        if self._why is not None:
            raise anyio.BrokenResourceError from self._why
        raise anyio.EndOfStream

    async def send(self, item: bytes) -> None:
        try:
            self._input.acquire_nowait()
        except anyio.WouldBlock:
            raise anyio.BusyResourceError("writing to") from None
        try:
            for at in range(0, len(item), _PIECE):
                await self._write(item[at : at + _PIECE])
        finally:
            self._input.release()

    async def _write(self, piece: bytes) -> None:
        if self._ending is not None:
            raise anyio.ClosedResourceError
        if self._cut:
            raise anyio.BrokenResourceError
        self._cut = True  # unless this succeeds: nobody knows what of a piece has arrived
        try:
            with anyio.CancelScope() as self._writing:
                self._process.stdin.write(piece)
                await self._process.stdin.drain.aio()
                self._cut = False
                return
        except HANDLED as error:
            self._break(error)
            self._output.close()  # nobody is answered who cannot ask
            raise anyio.BrokenResourceError from error
        raise anyio.ClosedResourceError

    async def send_eof(self) -> None:
        """Not there: `aclose` ends the input."""
        raise NotImplementedError

    async def aclose(self) -> None:
        if self._ending is None:
            self._output.close()
            self._writing.cancel()
            self._reader.cancel()
            self._ending = self._endings.begin(self._end())
        await asyncio.wait([self._ending])

    async def _read(self) -> None:
        """Pass on the output: whoever receives may be cancelled, and the SDK's reader may not."""
        try:
            async with aclosing(aiter(self._process.stdout)) as chunks:
                async for chunk in chunks:
                    await self._output.put(chunk)
            await asyncio.wait([self._hearer], timeout=_SAID_SECONDS)
            self._over = True
        except Exception as error:  # noqa: BLE001  # whatever it is, this is not the output's end
            self._break(error)
        finally:
            self._hearer.cancel()
            self._output.close()

    async def _hear(self) -> None:
        # All the time: a program whose words nobody takes would be held up.
        with suppress(Exception):  # what matters is said of the output
            async with aclosing(aiter(self._process.stderr)) as chunks:
                async for chunk in chunks:
                    self.said = (self.said + chunk)[-_SAID_BYTES:]

    def _break(self, error: Exception) -> None:
        self._why = self._why or error
        self.said = self.said or str(error).encode()[-_SAID_BYTES:]

    async def _end(self) -> None:
        with anyio.move_on_after(_END_SECONDS):
            await asyncio.wait([self._reader, self._hearer])
            if not self._over:
                async with self._input:
                    await _end_input(self._process)


async def _end_started(starting: "asyncio.Task[Any]") -> None:
    try:
        process = await starting
    except SandboxError:
        return
    with anyio.move_on_after(_END_SECONDS):
        await _end_input(process)


async def _end_input(process: Any) -> None:
    with suppress(*HANDLED):  # it has ended, or cannot be reached
        process.stdin.write_eof()
        await process.stdin.drain.aio()
