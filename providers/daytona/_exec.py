"""One command in a sandbox: in one call, its outputs delivered live and exactly, its tree ended."""

import asyncio
import secrets
import shlex

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
from sandboxkit.providers.daytona import _scripts
from sandboxkit.providers.daytona._account import NAME
from sandboxkit.providers.daytona._channel import Channel
from sandboxkit.providers.daytona._machine import Machine, Terminal, TerminalEnded
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
    terminal = await running.connect()
    try:
        return await running.follow(terminal, wrapped)
    except BaseException as error:
        if not isinstance(error, SandboxNotFoundError | SandboxTerminatedError):
            with anyio.CancelScope(shield=True):
                await _kill(machine, mark, error)
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await running.leave(terminal)


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
        self._closed_streams = 0
        self._ready = False
        self._window = asyncio.Semaphore(_WINDOW)
        self._on_terminal = asyncio.Event()

    async def connect(self) -> Terminal:
        """Start a shell on a terminal."""
        size = self._command.pty or PtySize(rows=24, cols=80)
        # Not to be cancelled halfway: Daytona would keep a terminal that nobody knows.
        terminal: Terminal | None = None
        with anyio.CancelScope(shield=True):
            terminal = await self._machine.terminal(self._name, size)
        assert terminal is not None
        return terminal

    async def leave(self, terminal: Terminal) -> None:
        """Let the shell end, and close the connection."""
        await terminal.write(b"q\n")
        await terminal.close()

    async def follow(self, terminal: Terminal, wrapped: Wrapped) -> int:
        """Return the exit status once everything up to the command's end has been delivered."""
        has_input = bool(wrapped.head) or self._command.stdin is not None
        # Not to be cancelled halfway: Daytona would start it after we have looked for it.
        with anyio.CancelScope(shield=True):
            await bounded(
                self._enter(terminal, wrapped, has_input),
                self._machine.timeout,
                provider=NAME,
                what="run a command",
                sandbox_id=self._machine.id,
            )
        status: int | None = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._ping, terminal)
                if has_input:
                    group.start_soon(self._feed, terminal, wrapped.head)
                status = await self._read(terminal)
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            error: BaseException = errors
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None
        assert status is not None
        return status

    async def _enter(self, terminal: Terminal, wrapped: Wrapped, has_input: bool) -> None:
        half = len(self._mark) // 2
        line = _scripts.ENTER.format(first=self._mark[:half], second=self._mark[half:])
        await terminal.write(line.encode())
        while not self._ready:
            for kind, data in self._channel.feed(await self._next(terminal)):
                self._ready = self._ready or (kind, data) == ("record", b"")
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in wrapped.env.items())
        on_terminal = self._command.pty is not None
        script = "\n".join(
            (
                f"mark={self._mark} has_input={int(has_input)}",
                f'enter() {{ export {exports}; exec "$@"; }}',
                f"set -- {shlex.join(wrapped.argv)}",
                _scripts.RUN_ON_TERMINAL if on_terminal else _scripts.RUN_APART,
            )
        ).encode("utf-8", "surrogateescape")
        await terminal.write(b"%d\n" % len(script) + script)

    async def _next(self, terminal: Terminal) -> bytes:
        try:
            return await terminal.read()
        except TerminalEnded as end:
            raise ProviderUnavailableError(
                f"the sandbox's shell ended with status {end.status} before the command",
                provider=NAME,
                sandbox_id=self._machine.id,
            ) from end

    async def _ping(self, terminal: Terminal) -> None:
        while True:
            await asyncio.sleep(self._machine.timeout / 3)
            await terminal.ping()

    async def _read(self, terminal: Terminal) -> int:
        while True:
            try:
                with anyio.fail_after(self._machine.timeout):
                    data = await terminal.read()
            except TimeoutError:
                raise ProviderUnavailableError(
                    f"daytona was silent for {self._machine.timeout:g} s while a command ran; "
                    "check the network",
                    provider=NAME,
                    sandbox_id=self._machine.id,
                ) from None
            except TerminalEnded as end:
                if 0 <= end.status < 128:  # it gave up; where it was killed, Daytona says -1
                    raise ProviderUnavailableError(
                        f"the shell around a command ended with status {end.status}; the sandbox "
                        "may be out of memory, processes or disk space",
                        provider=NAME,
                        sandbox_id=self._machine.id,
                    ) from None
                raise ShellEnded(_KILLED) from None
            for kind, piece in self._channel.feed(data):
                if kind == "record":
                    status = await self._obey(terminal, piece)
                else:
                    status = await self._deliver(kind, piece)
                if status is not None:
                    return status

    async def _obey(self, terminal: Terminal, word: bytes) -> int | None:
        match word:
            case b"o" | b"r":  # everything before has been delivered
                await terminal.write(word + b"\n")
            case b"i":
                self._window.release()
            case b"t":
                self._on_terminal.set()
            case b"x":
                self._closed_streams += 1
                if self._closed_streams == len(self._streams):
                    raise ShellEnded(_KILLED)
            case _ if word.isdigit():
                return int(word)
        return None

    async def _deliver(self, name: StreamName, data: bytes) -> int | None:
        """Pass on output; return the exit status once both streams have said it."""
        if self._command.pty is not None:
            if self._on_terminal.is_set():
                await self._output("stdout", data)
            return None
        if certain := self._streams[name].feed(data):
            await self._output(name, certain)
        if any(stream.status is None for stream in self._streams.values()):
            return None
        return self._streams["stdout"].status

    async def _feed(self, terminal: Terminal, head: bytes) -> None:
        """Pass on the command's input, until it has ended."""
        if head:
            await self._write(terminal, head)
        if self._command.stdin is not None:
            async for item in self._command.stdin:
                if isinstance(item, PtySize):
                    await self._machine.resize(self._name, item)
                else:
                    await self._write(terminal, item)
        if self._command.pty is None:
            await self._window.acquire()
            await terminal.write(b"i 0\n")

    async def _write(self, terminal: Terminal, data: bytes) -> None:
        if self._command.pty is not None:
            await self._on_terminal.wait()
            await terminal.write(data)
            return
        for start in range(0, len(data), _scripts.INPUT_PIECE):
            await self._window.acquire()
            piece = data[start : start + _scripts.INPUT_PIECE]
            await terminal.write(b"i %d\n" % len(piece) + piece)
