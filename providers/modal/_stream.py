"""The stdin and stdout of a program in a sandbox as a byte stream, over one Modal exec call."""

import asyncio
from contextlib import aclosing, suppress
from typing import Any

import anyio
import modal

from sandboxkit.errors import SandboxError
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers._hosted.pipe import BytePipe, Endings
from sandboxkit.providers.modal._account import HANDLED, ModalAccount

_PIECE = 2 << 20
"""Maximum bytes of input per call: a whole link record, below gRPC's default limit of 4 MiB."""
_HELD = 1 << 20
"""Bytes of output that are buffered; beyond them back-pressure stops Modal, then the program."""
_DIAGNOSTICS_BYTES = 2000
_DIAGNOSTICS_SECONDS = 0.5
"""How long (s) to wait for the last stderr of an ended program; its children may keep it open."""
_SILENT_SECONDS = 1.0
"""How long (s) after the start stderr is not read, unless the program ends."""
_END_SECONDS = 2.0


class ModalExecStream(ProgramStream):
    """The stream of a program that `open` starts. Modal cannot kill it, so closing ends its stdin.

    The SDK resumes input and output at their offsets after a transient failure. The stream breaks
    once it gives up, after about 10 s.
    """

    # Any: the SDK's process is generic over str and bytes, with synchronicity's own method types.
    def __init__(self, process: Any, endings: Endings) -> None:
        self.diagnostics = b""
        self._process, self._endings = process, endings
        self._output = BytePipe(_HELD)
        self._why: Exception | None = None
        self._over = self._cut = False
        self._input = anyio.Lock()
        self._writing = anyio.CancelScope()
        self._ended = asyncio.Event()
        self._hearer = asyncio.create_task(self._hear())
        self._reader = asyncio.create_task(self._read())
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, account: ModalAccount, handle: modal.Sandbox, argv: tuple[str, ...], endings: Endings
    ) -> "ModalExecStream":
        """Start a program. If this is cancelled, the program is ended once it has started."""
        # Modal carries out a call that was cancelled, and the SDK would lose its result.
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
        self._cut = True  # until this succeeds: after a failure it is unknown how much has arrived
        try:
            with anyio.CancelScope() as self._writing:
                self._process.stdin.write(piece)
                await self._process.stdin.drain.aio()
                self._cut = False
                return
        except HANDLED as error:
            self._break(error)
            self._output.close()  # without input there will be no answers
            raise anyio.BrokenResourceError from error
        raise anyio.ClosedResourceError

    async def aclose(self) -> None:
        if self._ending is None:
            self._output.close()
            self._writing.cancel()
            self._reader.cancel()
            self._ending = self._endings.begin(self._end())
        await asyncio.wait([self._ending])

    async def _read(self) -> None:
        """Copy stdout to a buffer: `receive` may be cancelled, the SDK's reader must not be."""
        try:
            async with aclosing(aiter(self._process.stdout)) as chunks:
                async for chunk in chunks:
                    await self._output.put(chunk)
            self._ended.set()
            await asyncio.wait([self._hearer], timeout=_DIAGNOSTICS_SECONDS)
            self._over = True
        except Exception as error:  # noqa: BLE001  # no exception may pass for the end of the output
            self._break(error)
        finally:
            self._hearer.cancel()
            self._output.close()

    async def _hear(self) -> None:
        # Unread stderr would block the program. Reading takes a call of its own, so it is delayed:
        # an agent reports its start on stdout and must not wait for that call.
        with anyio.move_on_after(_SILENT_SECONDS):
            await self._ended.wait()
        with suppress(Exception):  # a broken connection is reported by `_read`
            async with aclosing(aiter(self._process.stderr)) as chunks:
                async for chunk in chunks:
                    self.diagnostics = (self.diagnostics + chunk)[-_DIAGNOSTICS_BYTES:]

    def _break(self, error: Exception) -> None:
        self._why = self._why or error
        self.diagnostics = self.diagnostics or str(error).encode()[-_DIAGNOSTICS_BYTES:]

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
