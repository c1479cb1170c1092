"""One command in a sandbox: started once, its outputs delivered live and exactly, its tree ended."""

import re
import secrets
import shlex
import time
from contextlib import aclosing
from typing import Any

import anyio
import modal
import modal.exception
import modal.stream_type

from sandboxkit.errors import (
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Output, StreamName
from sandboxkit.providers.modal import _scripts
from sandboxkit.providers.modal._account import Account
from sandboxkit.providers.modal._errors import HANDLED, translate
from sandboxkit.types import Command, PtySize

__all__ = ["run"]

_ARGUMENTS = 56_000
"""Characters of arguments that go in the call itself: Modal takes 65536, our script included."""
_PIECE = 1 << 20
_DRAIN_SECONDS = 0.5
"""How long output may still come from a command that ended without saying so."""
_POLL = 0.1
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


async def run(account: Account, handle: modal.Sandbox, command: Command, output: Output) -> int:
    """See `Provider.exec`; `handle` is of a sandbox that was seen running."""
    mark = secrets.token_hex(16)
    argv, env, head = _wrapped(command, mark)
    try:
        # Not to be cancelled halfway: the SDK forgets the call, Modal runs the command.
        with anyio.CancelScope(shield=True):
            process = await account.call(
                lambda: handle.exec.aio(*argv, env=env, text=False, pty=command.pty is not None),
                what="run a command",
                sandbox_id=handle.object_id,
            )
        return await _Follower(account, handle, command, output, mark).follow(process, head)
    except BaseException as error:
        if not isinstance(error, SandboxNotFoundError | SandboxTerminatedError):
            with anyio.CancelScope(shield=True):
                await _kill(account, handle, mark, error)
        raise


def _wrapped(command: Command, mark: str) -> tuple[list[str], dict[str, str | None], bytes]:
    """The arguments and variables for Modal, and what goes ahead of the command's own input."""
    for name in command.env:
        if not _VARIABLE.fullmatch(name):
            raise ConfigurationError(
                f"modal cannot honour env={name!r}: a variable's name has letters, digits and "
                "'_' alone",
                provider="modal",
            )
    env: dict[str, str | None] = {**command.env, _scripts.MARK: mark}
    directory = command.cwd or ""
    if command.pty is not None:
        size = command.pty
        options = [mark, "0", "1", directory, str(size.rows), str(size.cols)]
        return ["sh", "-c", _scripts.RUN_ON_TERMINAL, "sh", *options, *command.argv], env, b""
    stdin = "0" if command.stdin is None else "1"
    head = b""
    arguments = list(command.argv)
    texts = [*arguments, *command.env.values(), directory]
    if sum(map(len, arguments)) > _ARGUMENTS or not all(map(_is_unicode, texts)):
        lines = ["set -- " + " ".join(map(shlex.quote, arguments))]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in command.env.items()]
        lines += [f"directory={shlex.quote(directory)}"] if directory else []
        head = "\n".join(lines).encode("utf-8", "surrogateescape")
        env, directory, arguments = {_scripts.MARK: mark}, directory and "/", []
    options = [mark, str(len(head)), stdin, directory]
    return ["sh", "-c", _scripts.RUN, "sh", *options, *arguments], env, head


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


class _Reader:
    """One output stream, up to the mark that the script sets when the command has ended."""

    def __init__(self, name: StreamName, mark: str, output: Output) -> None:
        self._name: StreamName = name
        self._mark = f"\036{mark}:".encode()
        self._output = output
        self.status: int | None = None
        self.ended = False
        self.waiting_since: float | None = time.monotonic()
        """Since when there is nothing to deliver; None while somebody takes what there was."""

    async def read(self, stream: Any) -> None:  # Any: the SDK types it as text or bytes
        """Deliver everything up to the mark, or else to the stream's end."""
        held = b""
        async with aclosing(aiter(stream)) as chunks:
            async for chunk in chunks:
                held += chunk
                at = held.find(self._mark)
                if at >= 0 and (end := held.find(b"\036", at + len(self._mark))) >= 0:
                    self.status = int(held[at + len(self._mark) : end])
                    held = held[:at]
                    break
                at = self._keep(held)
                await self._deliver(held[:at])
                held = held[at:]
        await self._deliver(held)
        self.ended = True

    def _keep(self, held: bytes) -> int:
        """Where the mark, complete or not, may begin in what has come so far."""
        at = held.find(self._mark)
        if at < 0:
            at = held.rfind(b"\036", max(0, len(held) - len(self._mark) + 1))
            while at >= 0 and not self._mark.startswith(held[at:]):
                at = held.find(b"\036", at + 1)
        return len(held) if at < 0 else at

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
                status = next((r.status for r in self._readers if r.status is not None), None)
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
        argv = ("sh", "-c", _scripts.RESIZE, "sh", *halves, str(size.rows), str(size.cols))
        await _run_script(self._account, self._handle, argv, "resize a terminal")

    async def _await_exit(self, process: Any) -> None:
        """Stop waiting for output that will not come: the script itself was killed, or it is lost."""
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


async def _kill(
    account: Account, handle: modal.Sandbox, mark: str, reason: BaseException
) -> None:
    """End everything of a command. Raises ProviderUnavailableError where that is not certain."""
    argv = ("sh", "-c", _scripts.KILL, "sh", mark[:16], mark[16:])
    try:
        await _run_script(account, handle, argv, "kill a command")
    except (SandboxNotFoundError, SandboxTerminatedError):
        pass  # with all that ran in it
    except SandboxError as error:
        if not isinstance(reason, SandboxError):
            raise
        reason.add_note(f"and what is left of the command was not ended: {error}")


async def _run_script(
    account: Account, handle: modal.Sandbox, argv: tuple[str, ...], what: str
) -> None:
    async def start_and_wait() -> int:
        process = await handle.exec.aio(
            *argv,
            text=False,
            stdout=modal.stream_type.StreamType.DEVNULL,
            stderr=modal.stream_type.StreamType.DEVNULL,
        )
        return await process.wait.aio()

    status = await account.call(start_and_wait, what=what, sandbox_id=handle.object_id)
    if status:
        raise ProviderUnavailableError(
            f"Modal could not {what}: the sandbox's shell ended with status {status}",
            provider="modal",
            sandbox_id=handle.object_id,
        )
