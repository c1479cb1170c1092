"""One command in a sandbox: in one call, its outputs delivered live and exactly, its tree ended."""

import asyncio
import secrets

import anyio

from sandboxkit.errors import (
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Output, StreamName
from sandboxkit.providers._hosted.command import Wrapped, kill_argv, wrap
from sandboxkit.providers._hosted.deadline import bounded
from sandboxkit.providers._hosted.output import MarkedStream
from sandboxkit.providers.daytona import _orders, _scripts
from sandboxkit.providers.daytona._account import NAME
from sandboxkit.providers.daytona._channel import Channel
from sandboxkit.providers.daytona._machine import Machine
from sandboxkit.providers.daytona._terminal import Terminal, TerminalEnded
from sandboxkit.types import Command, PtySize

__all__ = ["ShellEnded", "run"]

_WINDOW = 3
"""Pieces of input that may be on their way."""
_KILLED = 137


async def run(machine: Machine, command: Command, output: Output) -> int:
    """See `Provider.exec`; raises ShellEnded too, when nothing of the command is left."""
    if command.user not in (None, machine.user):
        raise ConfigurationError(
            f"provider 'daytona' cannot honour user={command.user!r} for one command: all run as "
            "the sandbox's user; give user= to the sandbox",
            provider=NAME,
            sandbox_id=machine.id,
        )
    mark = secrets.token_hex(16)
    wrapped = wrap(command, mark, NAME)
    running = _Running(machine, command, output, mark)
    await running.open()
    try:
        status = await running.follow(wrapped)
    except BaseException as error:
        if isinstance(error, ShellEnded):  # what ended it may have ended others, too
            machine.terminals.give_up()
        with anyio.CancelScope(shield=True):
            try:
                if not isinstance(error, SandboxNotFoundError | SandboxTerminatedError):
                    await _kill(machine, mark, error)
            finally:
                await running.end()
        raise
    with anyio.CancelScope(shield=True):
        await running.leave()
    return status


async def _kill(machine: Machine, mark: str, reason: BaseException) -> None:
    """End everything of a command. Raises ProviderUnavailableError where that is not certain."""
    try:
        status, said = await machine.run_script(kill_argv(mark), "kill a command")
        if status:
            raise ProviderUnavailableError(
                f"daytona could not kill a command: status {status} {said[:200]}",
                provider=NAME,
                sandbox_id=machine.id,
            )
    except (SandboxNotFoundError, SandboxTerminatedError):
        pass  # with all that ran in it
    except SandboxError as error:
        if not isinstance(reason, SandboxError):
            raise
        reason.add_note(f"and what is left of the command was not ended: {error}")


class ShellEnded(Exception):
    """The shell around a command was killed, or the whole sandbox; `status` is the command's."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _Running:
    """Everything that goes on while a command runs."""

    def __init__(self, machine: Machine, command: Command, output: Output, mark: str) -> None:
        self._machine, self._command, self._output, self._mark = machine, command, output, mark
        # Only the first half: the whole mark is in no other process than the command's.
        self._name = f"sandboxkit-{mark[:8]}"
        self._channel = Channel(mark)
        self._streams: dict[StreamName, MarkedStream] = {
            "stdout": MarkedStream(mark),
            "stderr": MarkedStream(mark),
        }
        self._status: int | None = None
        self._ready = False
        self._released = 0
        """Outputs that nobody holds any more."""
        self._window = asyncio.Semaphore(_WINDOW)
        self._pieces = 0
        """Of input that were sent, and of which we have not been told that they were taken."""
        self._on_terminal = asyncio.Event()
        self._terminal: Terminal
        self._kept = False

    async def open(self) -> None:
        """Have a terminal: a kept one, or a new one with a login shell."""
        if self._command.pty is None:
            kept = await self._machine.terminals.take(self._mark)
            if kept is not None:
                self._terminal, self._kept = kept, True
                return
        await self._connect()

    async def leave(self) -> None:
        """Keep the terminal for others where that is possible."""
        if self._command.pty is None:
            self._machine.terminals.keep(self._terminal, self._settle)
        else:
            await self.end()

    async def end(self) -> None:
        """Let the terminal's shell end."""
        await self._terminal.end()

    async def follow(self, wrapped: Wrapped) -> int:
        """Return the exit status once everything up to the command's end has been delivered."""
        has_input = bool(wrapped.head) or self._command.stdin is not None
        # Not to be cancelled halfway: Daytona would start it after we have looked for it.
        with anyio.CancelScope(shield=True):
            await bounded(
                self._begin(wrapped, has_input),
                self._machine.timeout,
                provider=NAME,
                what="run a command",
                sandbox_id=self._machine.id,
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
        size = self._command.pty or PtySize(rows=24, cols=80)
        # Not to be cancelled halfway: Daytona would keep a terminal that nobody knows.
        with anyio.CancelScope(shield=True):
            self._terminal = await self._machine.terminal(self._name, size)

    async def _begin(self, wrapped: Wrapped, has_input: bool) -> None:
        """Give the command to a shell, once."""
        if self._command.pty is not None:
            await self._enter()
            await self._terminal.write(_orders.on_terminal(wrapped, self._mark))
            return
        order = _orders.apart(wrapped, self._mark, has_input=has_input)
        if self._kept:
            if await self._terminal.send(order):
                return
            await self._terminal.close()
            await self._connect()
        await self._enter()
        await self._terminal.write(_orders.serve() + order)

    async def _enter(self) -> None:
        half = len(self._mark) // 2
        line = _scripts.ENTER.format(first=self._mark[:half], second=self._mark[half:])
        await self._terminal.write(line.encode())
        while not self._ready:
            for kind, data in self._channel.feed(await self._next()):
                self._ready = self._ready or (kind, data) == ("record", b"")

    async def _next(self) -> bytes:
        try:
            return await self._terminal.read()
        except TerminalEnded as end:
            raise ProviderUnavailableError(
                f"the sandbox's shell ended with status {end.status} before the command",
                provider=NAME,
                sandbox_id=self._machine.id,
            ) from end

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(self._machine.timeout / 3)
            await self._terminal.ping()

    async def _read(self) -> None:
        while self._status is None:
            try:
                with anyio.fail_after(self._machine.timeout):
                    data = await self._terminal.read()
            except TimeoutError:
                raise ProviderUnavailableError(
                    f"daytona was silent for {self._machine.timeout:g} s while a command ran; "
                    "check the network",
                    provider=NAME,
                    sandbox_id=self._machine.id,
                ) from None
            except TerminalEnded as end:
                if 0 <= end.status < 128:  # it gave up; where it was killed, Daytona says -1
                    raise self._gave_up(f"ended with status {end.status}") from None
                raise ShellEnded(_KILLED) from None
            await self._take(data)

    async def _settle(self) -> bool:
        """Read on after the end; return whether the terminal is as it was before."""
        while self._released < len(self._streams):
            await self._take(await self._terminal.read())
        return not self._pieces and not self._channel.held

    async def _take(self, data: bytes) -> None:
        for kind, piece in self._channel.feed(data):
            if kind == "record":
                await self._obey(piece)
            else:
                await self._deliver(kind, piece)

    async def _obey(self, word: bytes) -> None:
        match word:
            case b"o" | b"r":  # everything before has been delivered
                await self._terminal.write(word + b"\n")
            case b"i":
                self._pieces -= 1
                self._window.release()
            case b"t":
                self._on_terminal.set()
            case b"x":
                self._released += 1
                if self._released == len(self._streams) and self._status is None:
                    raise ShellEnded(_KILLED)
            case b"f":
                raise self._gave_up("cannot pass on its output")
            case _ if word.isdigit():
                self._status = int(word)

    async def _deliver(self, name: StreamName, data: bytes) -> None:
        if self._command.pty is not None:
            if self._on_terminal.is_set() and self._status is None:
                await self._output("stdout", data)
            return
        if certain := self._streams[name].feed(data):
            await self._output(name, certain)
        if all(stream.status is not None for stream in self._streams.values()):
            self._status = self._streams["stdout"].status

    def _gave_up(self, how: str) -> ProviderUnavailableError:
        return ProviderUnavailableError(
            f"the shell around a command {how}; the sandbox may be out of memory, processes or "
            "disk space",
            provider=NAME,
            sandbox_id=self._machine.id,
        )

    async def _feed(self, head: bytes) -> None:
        """Pass on the command's input, until it has ended."""
        if head:
            await self._write(head)
        if self._command.stdin is not None:
            async for item in self._command.stdin:
                if isinstance(item, PtySize):
                    await self._machine.resize(self._name, item)
                else:
                    await self._write(item)
        if self._command.pty is None:
            await self._terminal.write(b"i 0\n")
            self._pieces -= 1

    async def _write(self, data: bytes) -> None:
        if self._command.pty is not None:
            await self._on_terminal.wait()
            await self._terminal.write(data)
            return
        for start in range(0, len(data), _scripts.INPUT_PIECE):
            await self._window.acquire()
            piece = data[start : start + _scripts.INPUT_PIECE]
            self._pieces += 1
            await self._terminal.write(b"i %d\n" % len(piece) + piece)
