"""One command in a sandbox: started once, its outputs delivered live and exactly, its tree ended."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterable

import anyio
from connectrpc.errors import ConnectError
from e2b.envd.process import process_pb as pb

from sandboxkit.errors import (
    ProviderUnavailableError,
    SandboxNotFoundError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Output, StreamName
from sandboxkit.providers._hosted.command import Wrapped, kill_argv, wrap
from sandboxkit.providers._hosted.deadline import bounded
from sandboxkit.providers._hosted.killing import make_sure
from sandboxkit.providers._hosted.output import MarkedStream
from sandboxkit.providers.e2b._account import NAME
from sandboxkit.providers.e2b._machine import Events, Machine
from sandboxkit.types import Command, PtySize, StdinItem

__all__ = ["run"]

_PIECE = 1 << 20
_LINGER_SECONDS = 0.1
"""How long E2B may take to say that a command has ended to whose input we cannot write."""
_SIGNALS = {
    "hangup": 1,
    "interrupt": 2,
    "quit": 3,
    "illegal instruction": 4,
    "trace/breakpoint trap": 5,
    "aborted": 6,
    "bus error": 7,
    "floating point exception": 8,
    "killed": 9,
    "user defined signal 1": 10,
    "segmentation fault": 11,
    "user defined signal 2": 12,
    "broken pipe": 13,
    "alarm clock": 14,
    "terminated": 15,
}
"""What E2B says of a process that a signal ended, with the exit code -1."""


async def run(machine: Machine, command: Command, output: Output) -> int:
    """See `Provider.exec`."""
    mark = secrets.token_hex(16)
    wrapped = wrap(command, mark, NAME)
    running = _Running(machine, command, output, mark)
    try:
        return await running.follow(wrapped)
    except BaseException as error:
        if not isinstance(error, SandboxNotFoundError | SandboxTerminatedError):
            with anyio.CancelScope(shield=True):
                kill = machine.run_script(kill_argv(mark), f"kill-{mark[:8]}", "kill a command")
                await make_sure(kill, error)
        raise


class _Running:
    """Everything that goes on while a command runs."""

    def __init__(self, machine: Machine, command: Command, output: Output, mark: str) -> None:
        self._machine, self._command, self._output = machine, command, output
        # Only the first half: the whole mark is in no other process than the command's.
        self._tag = f"run-{mark[:8]}"
        self._streams = {"stdout": MarkedStream(mark), "stderr": MarkedStream(mark)}

    async def follow(self, wrapped: Wrapped) -> int:
        """Return the exit status once everything up to the command's end has been delivered."""
        command, has_input = self._command, bool(wrapped.head) or self._command.stdin is not None
        events = self._machine.start(
            wrapped.argv,
            tag=self._tag,
            env=wrapped.env,
            user=command.user,
            stdin=has_input,
            pty=command.pty,
        )
        try:
            # Not to be cancelled halfway: E2B would start it after we have looked for it.
            with anyio.CancelScope(shield=True):
                await bounded(
                    self._next(events),
                    self._machine.timeout,
                    provider=NAME,
                    what="run a command",
                    sandbox_id=self._machine.id,
                )
            status = 0
            async with anyio.create_task_group() as group:
                if has_input:
                    group.start_soon(self._feed, wrapped.head)
                status = await self._read(events)
                group.cancel_scope.cancel()
        except BaseException as errors:
            with anyio.CancelScope(shield=True):
                await events.aclose()
            if not isinstance(errors, BaseExceptionGroup):
                raise
            error: BaseException = errors
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None
        self._machine.leave(events)
        return status

    async def _next(self, events: Events) -> pb.ProcessEvent | None:
        try:
            response = await anext(events, None)
        except ConnectError as error:
            raise self._machine.translated(error, "run a command", self._command.user) from error
        return None if response is None else response.event or pb.ProcessEvent()

    async def _read(self, events: Events) -> int:
        patience = 3.0 * self._machine.ping
        while True:
            try:
                with anyio.fail_after(patience):
                    event = await self._next(events)
            except TimeoutError:
                raise ProviderUnavailableError(
                    f"e2b was silent for {patience:g} s while a command ran; check the network",
                    provider=NAME,
                    sandbox_id=self._machine.id,
                ) from None
            if event is None:
                raise ProviderUnavailableError(
                    "e2b ended the output of a command before the command; run it again",
                    provider=NAME,
                    sandbox_id=self._machine.id,
                )
            if event.event is None:
                continue
            if event.event.field == "data":
                status = await self._deliver(event.event.value)
                if status is not None:
                    return status
            elif event.event.field == "end":
                return await self._end(event.event.value)

    async def _deliver(self, data: pb.ProcessEvent.DataEvent) -> int | None:
        """Pass on output; return the exit status once both streams have said it."""
        if data.output is None:
            return None
        if data.output.field == "pty":
            await self._output("stdout", data.output.value)
            return None
        name: StreamName = data.output.field
        if certain := self._streams[name].feed(data.output.value):
            await self._output(name, certain)
        if any(stream.status is None for stream in self._streams.values()):
            return None
        return self._streams["stdout"].status

    async def _end(self, end: pb.ProcessEvent.EndEvent) -> int:
        for name in ("stdout", "stderr"):
            if rest := self._streams[name].rest():
                await self._output("stdout" if name == "stdout" else "stderr", rest)
        for stream in self._streams.values():
            if stream.status is not None:
                return stream.status
        if end.exit_code >= 0:
            return end.exit_code
        reason = end.status.removeprefix("signal: ").removesuffix(" (core dumped)")
        return 128 + _SIGNALS.get(reason, 9)

    async def _feed(self, head: bytes) -> None:
        """Pass on the command's input, until it has ended or nobody reads it any more."""
        try:
            if head and not await self._write(head):
                return
            if self._command.stdin is not None and not await self._pass_on(self._command.stdin):
                return
            if self._command.pty is None:
                await self._machine.close_stdin(self._tag)
        except SandboxNotFoundError:
            await asyncio.sleep(_LINGER_SECONDS)  # the output's end says it better
            raise

    async def _pass_on(self, stdin: AsyncIterable[StdinItem]) -> bool:
        items = aiter(stdin)
        try:
            async for item in items:
                if isinstance(item, PtySize):
                    alive = await self._machine.resize(self._tag, item)
                else:
                    alive = await self._write(item)
                if not alive:
                    return False
        finally:
            if isinstance(items, AsyncGenerator):
                # It ends here, in the task in which it ran, and as one that is cancelled: task
                # groups inside it make a GeneratorExit, with which aclose() would end it, an error.
                with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                    await items.athrow(asyncio.CancelledError())
        return True

    async def _write(self, data: bytes) -> bool:
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            terminal = self._command.pty is not None
            if not await self._machine.write(self._tag, piece, terminal=terminal):
                return False
        return True
