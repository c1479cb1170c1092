"""Sandbox: one isolated machine, started on first use."""

import asyncio
import builtins
import os
import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Self

import anyio

from sandboxkit import _arguments
from sandboxkit._operation import Operation
from sandboxkit._process import OUTPUT_LIMIT, Limits, Process
from sandboxkit._shell import Shell
from sandboxkit._streams import Stdin
from sandboxkit.errors import (
    ConfigurationError,
    SandboxFileError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Output, Provider
from sandboxkit.types import (
    Command,
    FileInfo,
    FileType,
    PtySize,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    StdinItem,
    Usage,
)

if TYPE_CHECKING:
    from sandboxkit._session import Slots
    from sandboxkit._tags import Tags
    from sandboxkit._transfer import Transfer

MAX_READ = 256 * 1024 * 1024
MAX_DOWNLOAD = 1024 * 1024 * 1024
MAX_DOWNLOAD_FILES = 100_000


class Sandbox:
    """One isolated machine. Made by `Session.sandbox()`; it starts on first use.

    Every call returns at once with an Operation: `.result()` blocks, `await` does not. As a
    context manager it starts on entry and stops on exit, unless it is detached.
    """

    def __init__(
        self,
        provider: Provider,
        spec: SandboxSpec,
        slots: "Slots",
        sandbox_id: str | None = None,
    ) -> None:
        self._provider, self._spec, self._slots, self._id = (
            provider,
            spec,
            slots,
            sandbox_id,
        )
        self._starting: asyncio.Task[str] | None = None
        self._start_scope: anyio.CancelScope | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._holds_slot = False
        self._stopped = False
        self._gone: Callable[[Sandbox], None] = lambda _: None  # told once it is deleted

    def __repr__(self) -> str:
        return f"<Sandbox {self._id or '(not started)'} provider={self.provider_name}>"

    @property
    def id(self) -> str | None:
        """The id that any process can use in `from_id`; None before the start."""
        return self._id

    @property
    def provider_name(self) -> str:
        """The name of the backend, such as "docker"."""
        return self._provider.name

    @property
    def spec(self) -> SandboxSpec:
        """The options it was made with; the defaults for one reached by `from_id`."""
        return self._spec

    @staticmethod
    def list(
        tags: "Tags | None" = None,
        state: SandboxState | None = None,
        *,
        provider: str | None = None,
    ) -> Operation[builtins.list[SandboxInfo]]:
        """List every sandbox that carries all of `tags`, whichever process made it."""
        from sandboxkit._session import ambient

        return ambient(provider).list(tags, state)

    @staticmethod
    def from_id(sandbox_id: str, *, provider: str | None = None) -> "Operation[Sandbox]":
        """Reach a sandbox of another process. Raises SandboxNotFoundError."""
        from sandboxkit._session import ambient

        return ambient(provider).from_id(sandbox_id)

    def start(self) -> Operation[Self]:
        """Start it now rather than on first use."""

        async def run() -> Self:
            await self._started()
            return self

        return Operation(run())

    def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        check: bool = False,
        stdin: bytes | str | bool | None = None,
        pty: PtySize | bool = False,
        output_limit: int | None = OUTPUT_LIMIT,
    ) -> Process:
        """Run a command and return at once. A non-zero exit is a result, not an error.

        `stdin` is the whole input, or True for a `Process.stdin` to write to. `pty` runs it on
        a terminal, with stdin open. `output_limit` is in bytes a stream, None for no limit.
        `timeout`, in seconds, counts from the command's start; past it the whole process tree
        is killed and the result raises CommandTimeoutError. With `check`, a non-zero exit
        raises CommandFailedError. Every other error is the infrastructure's.
        """
        self._refuse_stopped()
        if output_limit is not None:
            _arguments.positive("output_limit", output_limit, unit="bytes")
        if isinstance(stdin, str):
            stdin = stdin.encode()
        size = PtySize() if pty is True else pty or None
        live = Stdin() if stdin is True or (size is not None and not stdin) else None
        command = Command(
            argv=_arguments.argv(argv),
            cwd=None if cwd is None else _arguments.path(cwd, "cwd"),
            env=_arguments.env(env),
            user=user,
            stdin=live._items() if live else _once(stdin) if isinstance(stdin, bytes) else None,
            pty=size,
        )
        limits = Limits(_arguments.timeout(timeout), check, output_limit)

        async def ready() -> Callable[[Output], Awaitable[int]]:
            sandbox_id = await self._started()
            return lambda output: self._provider.exec(sandbox_id, command, output)

        return Process(command.argv, ready, limits, live)

    def shell(
        self,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Shell:
        """Open a shell that keeps its directory and environment between scripts."""
        return Shell(self, cwd=cwd, env=env, user=user)

    def read_file(self, path: str, *, max_bytes: int = MAX_READ) -> Operation[bytes]:
        """Read a whole file. Raises SandboxFileNotFoundError; SandboxFileError past max_bytes."""
        path = self._path(path)

        async def run() -> bytes:
            return await self._provider.read_file(await self._started(), path, max_bytes=max_bytes)

        return Operation(run())

    def write_file(
        self, path: str, data: bytes | str, *, mode: int | None = None
    ) -> Operation[None]:
        """Write a file atomically, making its parent folders.

        `mode` None keeps that of a file that exists and is 0o644 for a new one.
        """
        path, content = (
            self._path(path),
            data.encode() if isinstance(data, str) else bytes(data),
        )

        async def run() -> None:
            await self._provider.write_file(await self._started(), path, content, mode=mode)

        return Operation(run())

    def upload(self, local: str | os.PathLike[str], remote: str) -> Operation[None]:
        """Copy a file to the path `remote`, or a folder's contents into the folder `remote`.

        Modes and links inside a folder are kept. Folders are made as needed.
        """
        from sandboxkit import _transfer  # tarfile costs a tenth of the whole import

        remote, source = self._path(remote), os.fspath(local)
        if not os.path.exists(source):
            raise ConfigurationError(f"cannot upload {source!r}: there is no such file here")
        folder, name = (remote, None) if os.path.isdir(source) else posixpath.split(remote)
        if name == "":
            raise ConfigurationError(f"remote={remote!r} is a folder; add the file's name to it")

        async def run() -> None:
            async with aclosing(_transfer.pack(source, name)) as tar:
                await self._provider.put_archive(await self._started(), folder, tar)

        return Operation(run())

    def download(
        self,
        remote: str,
        local: str | os.PathLike[str],
        *,
        max_bytes: int = MAX_DOWNLOAD,
        max_files: int = MAX_DOWNLOAD_FILES,
    ) -> "Operation[Transfer]":
        """Copy a file to the path `local`, or a folder's contents into the folder `local`.

        What the sandbox sends is not trusted: links and special files are left out and named
        in the result, nothing is written outside `local`. Raises SandboxFileError past a limit,
        for members more than 64 folders or 2 KiB deep, and for what changes meanwhile; OSError
        where this machine cannot take it.
        """
        from sandboxkit import _transfer

        remote, target = self._path(remote), os.fspath(local)
        limits = _transfer.DownloadLimits(max_bytes, max_files)

        async def run() -> "Transfer":
            sandbox_id = await self._started()
            info = await self._provider.stat(sandbox_id, remote)
            if info.type not in (FileType.FILE, FileType.DIRECTORY):
                raise SandboxFileError(f"{remote!r} is a {info.type}; not downloaded", path=remote)
            single = info.type is FileType.FILE
            path = target
            if single and os.path.isdir(target):
                path = os.path.join(target, posixpath.basename(remote))
            tar = self._provider.get_archive(sandbox_id, remote)
            return await _transfer.unpack(tar, path, single=single, limits=limits)

        return Operation(run())

    def list_dir(self, path: str) -> Operation[builtins.list[FileInfo]]:
        """List a folder, sorted by path. Raises SandboxFileError for a very large one."""
        path = self._path(path)

        async def run() -> builtins.list[FileInfo]:
            return await self._provider.list_dir(await self._started(), path)

        return Operation(run())

    def stat(self, path: str) -> Operation[FileInfo]:
        """Describe a path without following a final link. Raises SandboxFileNotFoundError."""
        path = self._path(path)

        async def run() -> FileInfo:
            return await self._provider.stat(await self._started(), path)

        return Operation(run())

    def remove(self, path: str, *, recursive: bool = False) -> Operation[None]:
        """Remove a file, a link or an empty folder; with `recursive` a whole tree."""
        path = self._path(path)

        async def run() -> None:
            await self._provider.remove(await self._started(), path, recursive=recursive)

        return Operation(run())

    def logs(self) -> Operation[bytes]:
        """Return the newest output of the sandbox's main command, stdout and stderr together."""
        self._refuse_stopped()

        async def run() -> bytes:
            return await self._provider.logs(await self._started())

        return Operation(run())

    def status(self) -> Operation[SandboxInfo]:
        """Ask the backend. Raises SandboxNotFoundError once it is gone."""
        self._refuse_stopped()

        async def run() -> SandboxInfo:
            return await self._provider.get(await self._started())

        return Operation(run())

    def usage(self) -> Operation[Usage | None]:
        """Ask what it has used since its start; None from a backend that cannot tell."""
        self._refuse_stopped()

        async def run() -> Usage | None:
            return await self._provider.usage(await self._started())

        return Operation(run())

    def wait(self) -> Operation[int]:
        """Wait for the main command to end and return its exit status."""
        self._refuse_stopped()

        async def run() -> int:
            return await self._provider.wait(await self._started())

        return Operation(run())

    def renew(self, lifetime: float) -> Operation[None]:
        """Let it live `lifetime` seconds from now."""
        _arguments.positive("lifetime", lifetime, unit="seconds")
        self._refuse_stopped()

        async def run() -> None:
            await self._provider.renew(await self._started(), lifetime)

        return Operation(run())

    def stop(self) -> Operation[None]:
        """End it and remove everything of it. Idempotent; a start in flight is undone."""
        return Operation(self._stop())

    def __enter__(self) -> Self:
        return self.start().result()

    def __exit__(self, *exc: object) -> None:
        if not self._spec.detach:
            self.stop().result()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        if not self._spec.detach:
            await self.stop()

    # Everything below runs on the background loop, so checks and assignments do not interleave.

    async def _started(self) -> str:
        self._refuse_stopped()
        if self._id is not None:
            return self._id
        if self._starting is None:
            self._starting = asyncio.create_task(self._create())
            # Whoever waits sees the error; nobody may be waiting any more.
            self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        starting = self._starting
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():
                self._refuse_stopped()  # the start was undone by stop()
            raise

    async def _create(self) -> str:
        with anyio.CancelScope() as self._start_scope:
            return await self._create_whole()
        raise self._stopped_error()  # stop() undid it

    async def _create_whole(self) -> str:
        try:
            await self._slots.acquire()
            self._holds_slot = True
            sandbox_id = await self._provider.create(self._spec)
            try:
                for path, data in self._spec.files.items():
                    await self._provider.write_file(sandbox_id, path, data, mode=None)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._provider.delete(sandbox_id)
                raise
        except BaseException:
            self._starting = None  # so that the next call tries again
            self._release_slot()
            raise
        self._id = sandbox_id
        return sandbox_id

    async def _stop(self) -> None:
        if self._stopping is None:
            self._stopped = True
            self._stopping = asyncio.create_task(self._delete())
            self._stopping.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._stopping)

    async def _delete(self) -> None:
        try:
            if self._starting is not None and self._id is None:
                # create() leaves nothing behind when cancelled. Through the scope once there is
                # one: a provider's shields hold against scopes, not against task.cancel().
                starting = self._starting
                (self._start_scope or starting).cancel()
                await asyncio.wait([starting])
            if self._id is not None:
                await self._provider.delete(self._id)
        except BaseException:
            self._stopping = None  # so that the next stop() tries again
            raise
        self._release_slot()
        self._gone(self)

    async def _adopt(self) -> None:
        await self._slots.acquire()
        self._holds_slot = True

    def _release_slot(self) -> None:
        if self._holds_slot:
            self._holds_slot = False
            self._slots.release()

    def _path(self, path: str) -> str:
        self._refuse_stopped()
        return _arguments.path(path)

    def _refuse_stopped(self) -> None:
        if self._stopped:
            raise self._stopped_error()

    def _stopped_error(self) -> SandboxTerminatedError:
        return SandboxTerminatedError(
            f"sandbox {self._id or '(never started)'} was stopped; "
            "make a new one with session.sandbox()",
            provider=self.provider_name,
            sandbox_id=self._id,
        )


async def _once(data: bytes) -> AsyncIterator[StdinItem]:
    if data:
        yield data
