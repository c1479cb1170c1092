"""One command in a sandbox: started once, its outputs delivered live and exactly, its tree ended."""

import secrets
import time
from contextlib import aclosing
from typing import Any

import anyio
import modal.exception

from sandboxkit.errors import (
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Output, StreamName
from sandboxkit.providers._hosted.command import wrap
from sandboxkit.providers._hosted.kept import running as kept
from sandboxkit.providers._hosted.kept.running import ShellEnded
from sandboxkit.providers._hosted.output import MarkedStream
from sandboxkit.providers.modal._errors import HANDLED
from sandboxkit.providers.modal._line import INPUT_PIECE, following
from sandboxkit.providers.modal._machine import Machine
from sandboxkit.types import Command, PtySize

__all__ = ["ShellEnded", "run"]

_ARGUMENTS = 56_000
"""Characters of arguments that go in the call itself: Modal takes 65536, our script included."""
_DRAIN_SECONDS = 0.5
"""How long output may still come from a command that ended without saying so."""
_SHORT_SECONDS = 0.2
"""A command that has ended by then has said so on its outputs: Modal need not be asked, too."""
_POLL = 0.1


async def run(machine: Machine, command: Command, output: Output) -> int:
    """See `Provider.exec`; raises ShellEnded too, when nothing of the command is left.

    Input is what Modal carries better by itself, and a terminal what it alone has.
    """
    mark = secrets.token_hex(16)
    wrapped = wrap(command, mark, "modal", limit=_ARGUMENTS)
    if command.pty is None and command.stdin is None and not wrapped.head:
        return await kept.run(kept.Running(machine, command, output, mark), machine, wrapped, mark)
    env: dict[str, str | None] = {**wrapped.env}
    process: Any = None  # Any: the SDK types it as of text or of bytes
    try:
        # Not to be cancelled halfway: the SDK forgets the call, Modal runs the command.
        with anyio.CancelScope(shield=True):
            process = await machine.account.call(
                lambda: machine.handle.exec.aio(
                    *wrapped.argv, env=env, text=False, pty=command.pty is not None
                ),
                what="run a command",
                sandbox_id=machine.id,
            )
        return await _Follower(machine, command, output, mark).follow(process, wrapped.head)
    except BaseException as error:
        if not isinstance(error, SandboxNotFoundError | SandboxTerminatedError):
            with anyio.CancelScope(shield=True):
                await machine.kill(mark, error)
        raise


class _Reader:
    """One output stream, up to the mark that the script sets when the command has ended."""

    def __init__(self, name: StreamName, mark: str, output: Output) -> None:
        self._name: StreamName = name
        self._output = output
        self.marked = MarkedStream(mark)
        self.ended = False
        self.waiting_since: float | None = time.monotonic()
        """Since when there is nothing to deliver; None while somebody takes what there was."""

    async def read(self, stream: Any) -> None:  # Any: the SDK types it as text or bytes
        """Deliver everything up to the mark, or else to the stream's end."""
        async with aclosing(aiter(stream)) as chunks:
            async for chunk in chunks:
                await self._deliver(self.marked.feed(chunk))
                if self.marked.status is not None:
                    break
        await self._deliver(self.marked.rest())
        self.ended = True

    async def _deliver(self, chunk: bytes) -> None:
        if chunk:
            self.waiting_since = None
            await self._output(self._name, chunk)
        self.waiting_since = time.monotonic()


class _Follower:
    """Everything that goes on while a command runs."""

    def __init__(self, machine: Machine, command: Command, output: Output, mark: str) -> None:
        self._machine, self._command, self._mark = machine, command, mark
        self._readers = [_Reader("stdout", mark, output), _Reader("stderr", mark, output)]
        if command.pty is not None:
            del self._readers[1]
        self._reading = anyio.CancelScope()
        self._exit: int | None = None
        self._exited = anyio.Event()

    async def follow(self, process: Any, head: bytes) -> int:  # Any: of text or of bytes
        """Return the exit status once everything up to the command's end has been delivered."""
        status: int | None = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._feed, process.stdin, head)
                group.start_soon(self._await_exit, process)
                with self._reading:
                    async with anyio.create_task_group() as readers:
                        for reader, stream in zip(
                            self._readers, (process.stdout, process.stderr), strict=False
                        ):
                            readers.start_soon(reader.read, stream)
                said = (reader.marked.status for reader in self._readers)
                status = next((status for status in said if status is not None), None)
                if status is None:
                    await self._exited.wait()
                    status = self._exit
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            raise self._translated(errors) from None
        assert status is not None
        return status

    async def _feed(self, stdin: Any, head: bytes) -> None:  # Any: synchronicity's own types
        """Pass on the command's input, until it has ended or nobody reads it any more."""
        try:
            if head:
                await self._write(stdin, head)
            if self._command.stdin is not None:
                async for item in self._command.stdin:
                    if isinstance(item, PtySize):
                        await self._machine.resize(self._mark, item)
                    else:
                        await self._write(stdin, item)
            if head or self._command.stdin is not None:
                stdin.write_eof()
                await stdin.drain.aio()
        except modal.exception.ConflictError:
            pass  # the command has closed its input, or has ended

    async def _write(self, stdin: Any, data: bytes) -> None:
        for start in range(0, len(data), INPUT_PIECE):
            stdin.write(data[start : start + INPUT_PIECE])
            await stdin.drain.aio()

    async def _await_exit(self, process: Any) -> None:
        """Stop waiting for output that will not come: the script itself was killed, or it is lost."""
        if self._command.pty is None:
            await anyio.sleep(_SHORT_SECONDS)
        self._exit = await process.wait.aio()
        self._exited.set()
        ended = time.monotonic()
        # Where the script ended by itself it has written its marks.
        complete = self._exit == 0 and self._command.pty is None
        patience = self._machine.timeout if complete else _DRAIN_SECONDS
        while late := [reader for reader in self._readers if not reader.ended]:
            since = min(reader.waiting_since or time.monotonic() for reader in late)
            if time.monotonic() - max(since, ended) > patience:
                if complete:
                    raise ProviderUnavailableError(
                        f"Modal did not deliver the end of a command's output within {patience:g} "
                        "s of its end; run it again",
                        provider="modal",
                        sandbox_id=self._machine.id,
                    )
                self._reading.cancel()
            await anyio.sleep(_POLL)

    def _translated(self, errors: BaseExceptionGroup[BaseException]) -> BaseException:
        error = errors.exceptions[0]
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, SandboxError) or not isinstance(error, HANDLED):
            return error
        translated = following(error, self._machine.id)
        translated.__cause__ = error
        return translated
