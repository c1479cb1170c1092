"""One command over a line: its outputs delivered live and exactly, its tree ended."""

import asyncio
from typing import Protocol

import anyio

from sandboxkit.errors import (
    ProviderUnavailableError,
    SandboxNotFoundError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Output, StreamName
from sandboxkit.providers._hosted.command import Wrapped
from sandboxkit.providers._hosted.deadline import bounded
from sandboxkit.providers._hosted.kept import orders
from sandboxkit.providers._hosted.kept.channel import Channel
from sandboxkit.providers._hosted.kept.lines import Line, LineEnded, Lines, Said
from sandboxkit.providers._hosted.kept.scripts import INPUT_PIECE
from sandboxkit.providers._hosted.output import MarkedStream
from sandboxkit.types import Command, PtySize

__all__ = ["Host", "Running", "ShellEnded", "run"]

_INPUT_WINDOW = 3
"""Pieces of input that may be on their way."""
_KILLED = 137


class Host(Protocol):
    """A sandbox that has lines."""

    provider: str
    id: str
    timeout: float
    """Seconds that any one call may take, and that a running command's shell may be silent."""
    lines: Lines

    async def open(self, mark: str, pty: PtySize | None) -> Line:
        """A new line, on which nothing has been said; on a terminal of this size if given one."""
        ...

    async def enter(self, line: Line, mark: str) -> bytes:
        """Make a new line ready to be told; return what to say before the first order."""
        ...

    async def resize(self, mark: str, size: PtySize) -> None:
        """Tell the terminal of the command its new size."""
        ...

    async def kill(self, mark: str, reason: BaseException) -> None:
        """End all of a command. Raises ProviderUnavailableError where that is not certain."""
        ...


async def run(running: "Running", host: Host, wrapped: Wrapped, mark: str) -> int:
    """Run a command to its end. Raises ShellEnded too, when nothing of it is left."""
    await running.open()
    try:
        status = await running.follow(wrapped)
    except BaseException as error:
        if isinstance(error, ShellEnded):  # what ended it may have ended others, too
            host.lines.give_up()
        with anyio.CancelScope(shield=True):
            try:
                if not isinstance(error, SandboxNotFoundError | SandboxTerminatedError):
                    await host.kill(mark, error)
            finally:
                await running.line.end()
        raise
    with anyio.CancelScope(shield=True):
        await running.leave()
    return status


class ShellEnded(Exception):
    """The shell around a command was killed, or the whole sandbox; `status` is the command's."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Running:
    """Everything that goes on while a command runs, its outputs apart."""

    line: Line

    def __init__(self, host: Host, command: Command, output: Output, mark: str) -> None:
        self._host, self._command, self._output, self._mark = host, command, output, mark
        outputs: tuple[StreamName, ...] = ("stdout", "stderr")
        self._channels = {name: Channel(mark, name) for name in outputs}
        self._streams = {name: MarkedStream(mark) for name in outputs}
        self._status: int | None = None
        self._released = 0
        """Outputs that nobody holds any more."""
        self._window = asyncio.Semaphore(_INPUT_WINDOW)
        self._pieces = 0
        """Of input that were sent, and of which we have not been told that they were taken."""
        self._kept = False

    async def open(self) -> None:
        """Have a line: a kept one, or a new one."""
        kept = await self._host.lines.take(self._mark)
        if kept is not None:
            self.line, self._kept = kept, True
        else:
            await self._connect()

    async def leave(self) -> None:
        """Keep the line for others."""
        self._host.lines.keep(self.line, self._settle)

    async def follow(self, wrapped: Wrapped) -> int:
        """Return the exit status once everything up to the command's end has been delivered."""
        has_input = bool(wrapped.head) or self._command.stdin is not None
        # Not to be cancelled halfway: the command would start after we have looked for it.
        with anyio.CancelScope(shield=True):
            await bounded(
                self._begin(wrapped, has_input),
                self._host.timeout,
                provider=self._host.provider,
                what="run a command",
                sandbox_id=self._host.id,
            )
        self._pieces = int(has_input)  # the end
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._ping)
                if has_input:
                    group.start_soon(self._feed, wrapped.head)
                await self._read()
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            error: BaseException = errors
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None
        assert self._status is not None
        return self._status

    async def _connect(self) -> None:
        # Not to be cancelled halfway: the vendor would keep a shell that nobody knows.
        with anyio.CancelScope(shield=True):
            self.line = await self._host.open(self._mark, self._command.pty)

    async def _begin(self, wrapped: Wrapped, has_input: bool) -> None:
        """Give the command to a shell, once."""
        order = orders.apart(wrapped, self._mark, has_input=has_input)
        if self._kept:
            if await self.line.send(order):
                return
            await self.line.close()
            await self._connect()
        await self.line.write(await self._host.enter(self.line, self._mark) + order)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(self._host.timeout / 3)
            await self.line.ping(self._mark)

    async def _read(self) -> None:
        while self._status is None:
            try:
                with anyio.fail_after(self._host.timeout):
                    said = await self.line.read()
            except TimeoutError:
                raise ProviderUnavailableError(
                    f"{self._host.provider} was silent for {self._host.timeout:g} s while a "
                    "command ran; check the network",
                    provider=self._host.provider,
                    sandbox_id=self._host.id,
                ) from None
            except LineEnded as end:
                if 0 <= end.status < 128:  # it gave up; where it was killed, it is another
                    raise self._gave_up(f"ended with status {end.status}") from None
                raise ShellEnded(_KILLED) from None
            await self._take(said)

    async def _settle(self) -> bool:
        """Read on after the end; return whether the line is as it was before."""
        while self._released < len(self._streams):
            await self._take(await self.line.read())
        return not self._pieces and not any(each.held for each in self._channels.values())

    async def _take(self, said: Said) -> None:
        name, data = said
        for kind, piece in self._channels[name].feed(data):
            if kind == "record":
                await self._obey(piece)
            else:
                await self._deliver(kind, piece)

    async def _obey(self, word: bytes) -> None:
        match word:
            case b"o" | b"r":  # everything before has been delivered
                await self.line.write(word + b"\n")
            case b"i":
                self._pieces -= 1
                self._window.release()
            case b"x":
                self._released += 1
                if self._released == len(self._streams) and self._status is None:
                    raise ShellEnded(_KILLED)
            case b"f":
                raise self._gave_up("cannot pass on its output")
            case _ if word.isdigit():
                self._status = int(word)

    async def _deliver(self, name: StreamName, data: bytes) -> None:
        if certain := self._streams[name].feed(data):
            await self._output(name, certain)
        if all(stream.status is not None for stream in self._streams.values()):
            self._status = self._streams["stdout"].status

    def _gave_up(self, how: str) -> ProviderUnavailableError:
        return ProviderUnavailableError(
            f"the shell around a command {how}; the sandbox may be out of memory, processes or "
            "disk space",
            provider=self._host.provider,
            sandbox_id=self._host.id,
        )

    async def _feed(self, head: bytes) -> None:
        """Pass on the command's input, until it has ended."""
        if head:
            await self._write(head)
        if self._command.stdin is not None:
            async for item in self._command.stdin:
                if isinstance(item, PtySize):
                    await self._host.resize(self._mark, item)
                else:
                    await self._write(item)
        await self._end_input()

    async def _end_input(self) -> None:
        await self.line.write(b"i 0\n")
        self._pieces -= 1

    async def _write(self, data: bytes) -> None:
        for start in range(0, len(data), INPUT_PIECE):
            await self._window.acquire()
            piece = data[start : start + INPUT_PIECE]
            self._pieces += 1
            await self.line.write(b"i %d\n" % len(piece) + piece)
