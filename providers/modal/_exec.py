"""One command in a sandbox: started once, its outputs delivered live and exactly, its tree ended."""

import secrets
import time
from contextlib import aclosing
from typing import Any

import anyio
import modal
import modal.exception
import modal.stream_type

from sandboxkit.errors import (
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Output, StreamName
from sandboxkit.providers._hosted import scripts
from sandboxkit.providers._hosted.command import kill_argv, wrap
from sandboxkit.providers._hosted.output import MarkedStream
from sandboxkit.providers.modal._account import Account
from sandboxkit.providers.modal._errors import HANDLED, translate
from sandboxkit.types import Command, PtySize

__all__ = ["run"]

_ARGUMENTS = 56_000
"""Characters of arguments that go in the call itself: Modal takes 65536, our script included."""
_PIECE = 1 << 20
_DRAIN_SECONDS = 0.5
"""How long output may still come from a command that ended without saying so."""
_SHORT_SECONDS = 0.2
"""A command that has ended by then has said so on its outputs: Modal need not be asked, too."""
_LAST_TRY_SECONDS = 1.0
_POLL = 0.1


async def run(account: Account, handle: modal.Sandbox, command: Command, output: Output) -> int:
    """See `Provider.exec`; `handle` is of a sandbox that was seen running."""
    mark = secrets.token_hex(16)
    wrapped = wrap(command, mark, "modal", limit=_ARGUMENTS)
    env: dict[str, str | None] = {**wrapped.env}
    process: Any = None  # Any: the SDK types it as of text or of bytes
    try:
        # Not to be cancelled halfway: the SDK forgets the call, Modal runs the command.
        with anyio.CancelScope(shield=True):
            process = await account.call(
                lambda: handle.exec.aio(
                    *wrapped.argv, env=env, text=False, pty=command.pty is not None
                ),
                what="run a command",
                sandbox_id=handle.object_id,
            )
        return await _Follower(account, handle, command, output, mark).follow(process, wrapped.head)
    except BaseException as error:
        if not isinstance(error, SandboxNotFoundError | SandboxTerminatedError):
            with anyio.CancelScope(shield=True):
                await _kill(account, handle, mark, error)
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

    def __init__(
        self, account: Account, handle: modal.Sandbox, command: Command, output: Output, mark: str
    ) -> None:
        self._account, self._handle, self._command, self._mark = account, handle, command, mark
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
                        await self._resize(item)
                    else:
                        await self._write(stdin, item)
            if head or self._command.stdin is not None:
                stdin.write_eof()
                await stdin.drain.aio()
        except modal.exception.ConflictError:
            pass  # the command has closed its input, or has ended

    async def _write(self, stdin: Any, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            stdin.write(data[start : start + _PIECE])
            await stdin.drain.aio()

    async def _resize(self, size: PtySize) -> None:
        halves = self._mark[:16], self._mark[16:]
        argv = ("sh", "-c", scripts.RESIZE, "sh", *halves, str(size.rows), str(size.cols))
        await _run_script(self._account, self._handle, argv, "resize a terminal")

    async def _await_exit(self, process: Any) -> None:
        """Stop waiting for output that will not come: the script itself was killed, or it is lost."""
        if self._command.pty is None:
            await anyio.sleep(_SHORT_SECONDS)
        self._exit = await process.wait.aio()
        self._exited.set()
        ended = time.monotonic()
        # Where the script ended by itself it has written its marks.
        complete = self._exit == 0 and self._command.pty is None
        patience = self._account.timeout if complete else _DRAIN_SECONDS
        while late := [reader for reader in self._readers if not reader.ended]:
            since = min(reader.waiting_since or time.monotonic() for reader in late)
            if time.monotonic() - max(since, ended) > patience:
                if complete:
                    raise ProviderUnavailableError(
                        f"Modal did not deliver the end of a command's output within {patience:g} "
                        "s of its end; run it again",
                        provider="modal",
                        sandbox_id=self._handle.object_id,
                    )
                self._reading.cancel()
            await anyio.sleep(_POLL)

    def _translated(self, errors: BaseExceptionGroup[BaseException]) -> BaseException:
        error = errors.exceptions[0]
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, SandboxError) or not isinstance(error, HANDLED):
            return error
        translated = translate(error, "follow a command", self._handle.object_id)
        if isinstance(translated, SandboxNotFoundError):
            translated = SandboxTerminatedError(
                f"sandbox {self._handle.object_id!r} ended under the command: its lifetime passed, "
                "it was stopped, or it ran out of memory",
                provider="modal",
                sandbox_id=self._handle.object_id,
            )
        translated.__cause__ = error
        return translated


async def _kill(account: Account, handle: modal.Sandbox, mark: str, reason: BaseException) -> None:
    """End everything of a command. Raises ProviderUnavailableError where that is not certain."""
    broken = isinstance(reason, SandboxError)  # then this way is most likely broken, too
    try:
        await _run_script(
            account,
            handle,
            kill_argv(mark),
            "kill a command",
            seconds=_LAST_TRY_SECONDS if broken else None,
        )
    except (SandboxNotFoundError, SandboxTerminatedError):
        pass  # with all that ran in it
    except SandboxError as error:
        if not broken:
            raise
        reason.add_note(f"and what is left of the command was not ended: {error}")


async def _run_script(
    account: Account,
    handle: modal.Sandbox,
    argv: tuple[str, ...],
    what: str,
    *,
    seconds: float | None = None,
) -> None:
    async def start_and_wait() -> int:
        process = await handle.exec.aio(
            *argv,
            text=False,
            stdout=modal.stream_type.StreamType.DEVNULL,
            stderr=modal.stream_type.StreamType.DEVNULL,
        )
        return await process.wait.aio()

    status = await account.call(
        start_and_wait, what=what, sandbox_id=handle.object_id, seconds=seconds
    )
    if status:
        raise ProviderUnavailableError(
            f"Modal could not {what}: the sandbox's shell ended with status {status}",
            provider="modal",
            sandbox_id=handle.object_id,
        )
