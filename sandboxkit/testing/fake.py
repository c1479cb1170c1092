"""FakeProvider: real commands in a folder of this machine, for tests. No isolation whatever."""

import asyncio
import builtins
import contextlib
import dataclasses
import datetime
import os
import secrets
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from pathlib import Path
from typing import ClassVar

import anyio

from sandboxkit.errors import ConfigurationError, SandboxNotFoundError, SandboxTerminatedError
from sandboxkit.provider import Output, Provider, StreamName
from sandboxkit.testing._tree import MARKER, kill_tree
from sandboxkit.types import Command, FileInfo, SandboxInfo, SandboxSpec, SandboxState

_LOG_LIMIT = 1 << 20
_DRAIN_SECONDS = 0.1


@dataclasses.dataclass
class _Box:
    spec: SandboxSpec
    folder: Path
    created: datetime.datetime
    ends: float | None
    ended: anyio.Event
    log: deque[bytes]
    main: "asyncio.Task[int] | None" = None
    timer: "asyncio.Task[None] | None" = None


class FakeProvider(Provider):
    """Sandboxes that are folders of this machine, known to this object only.

    Commands are real processes of the caller, in the caller's file system: run trusted code
    only. /workspace and /tmp lead to the sandbox's folder where they begin an argument, `cwd`
    or a path of a file call. Limits, images, networks and users are not honoured: a spec that
    asks for one is refused.
    """

    name: ClassVar[str] = "fake"

    def __init__(self) -> None:
        self._boxes: dict[str, _Box] = {}

    def check(self, spec: SandboxSpec) -> None:
        """Refuse what a folder cannot give; see `Provider.check`."""
        for field in ("user", "cpus", "memory_mb", "disk_mb", "pids", "gpu"):
            if getattr(spec, field) is not None:
                raise ConfigurationError(
                    f"{field}={getattr(spec, field)!r}: FakeProvider has no limits"
                )

    async def create(self, spec: SandboxSpec) -> str:
        """See `Provider.create`."""
        sandbox_id = f"fake-{secrets.token_hex(6)}"
        folder = Path(tempfile.mkdtemp(prefix="sandboxkit-fake-"))
        box = _Box(
            spec=spec,
            folder=folder,
            created=datetime.datetime.now(datetime.UTC),
            ends=None,
            ended=anyio.Event(),
            log=deque(),
        )
        self._boxes[sandbox_id] = box
        for path in ("/workspace", "/tmp", spec.workdir or "/workspace"):
            Path(_mapped(box, path)).mkdir(parents=True, exist_ok=True)
        if spec.lifetime is not None:
            await self.renew(sandbox_id, spec.lifetime)
        if spec.command is not None:

            async def log(stream: StreamName, chunk: bytes) -> None:
                box.log.append(chunk)
                while sum(map(len, box.log)) > _LOG_LIMIT + len(box.log[0]):
                    box.log.popleft()

            box.main = asyncio.create_task(self._run(box, Command(spec.command), log))
        return sandbox_id

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """See `Provider.list`."""
        for sandbox_id, box in list(self._boxes.items()):
            if tags.items() <= box.spec.tags.items():
                expires = None if box.ends is None else _utc(box.ends)
                yield SandboxInfo(
                    sandbox_id,
                    self.name,
                    SandboxState.RUNNING,
                    box.spec.tags,
                    box.spec.image,
                    box.created,
                    expires,
                )

    async def delete(self, sandbox_id: str) -> None:
        """See `Provider.delete`."""
        box = self._boxes.pop(sandbox_id, None)
        if box is None:
            return
        box.ended.set()
        if box.timer is not None and box.timer is not asyncio.current_task():
            box.timer.cancel()
        if box.main is not None:
            box.main.cancel()
        await self._kill(f"box:{box.folder}", None)
        shutil.rmtree(box.folder, ignore_errors=True)

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> int:
        """See `Provider.exec`."""
        box = self._box(sandbox_id)
        if command.user is not None:
            raise ConfigurationError(f"user={command.user!r}: FakeProvider cannot change users")
        if command.pty is not None:
            raise ConfigurationError(f"pty={command.pty!r}: FakeProvider has no terminals")
        returncode = await self._run(box, command, output)
        if box.ended.is_set():
            raise SandboxTerminatedError(
                f"sandbox {sandbox_id!r} ended under the command",
                provider=self.name,
                sandbox_id=sandbox_id,
            )
        return returncode

    async def list_dir(self, sandbox_id: str, path: str) -> builtins.list[FileInfo]:
        """See `Provider.list_dir`."""
        box = self._box(sandbox_id)
        return [_unmapped(box, info) for info in await super().list_dir(sandbox_id, path)]

    async def stat(self, sandbox_id: str, path: str) -> FileInfo:
        """See `Provider.stat`."""
        return _unmapped(self._box(sandbox_id), await super().stat(sandbox_id, path))

    def get_archive(self, sandbox_id: str, path: str) -> AsyncGenerator[bytes, None]:
        """See `Provider.get_archive`."""
        self._box(sandbox_id)
        return super().get_archive(sandbox_id, path)

    async def put_archive(self, sandbox_id: str, path: str, tar: AsyncIterable[bytes]) -> None:
        """See `Provider.put_archive`."""
        self._box(sandbox_id)
        await super().put_archive(sandbox_id, path, tar)

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        """See `Provider.renew`."""
        box = self._box(sandbox_id)
        if box.timer is not None:
            box.timer.cancel()
        box.ends = datetime.datetime.now(datetime.UTC).timestamp() + lifetime

        async def end() -> None:
            await anyio.sleep(lifetime)
            await self.delete(sandbox_id)

        box.timer = asyncio.create_task(end())

    async def logs(self, sandbox_id: str) -> bytes:
        """See `Provider.logs`."""
        return b"".join(self._box(sandbox_id).log)

    async def wait(self, sandbox_id: str) -> int:
        """See `Provider.wait`."""
        main = self._box(sandbox_id).main
        if main is None:
            raise ConfigurationError(f"sandbox {sandbox_id!r} has no main command to wait for")
        return await asyncio.shield(main)

    def _base_env(self, box: _Box) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(box.folder), "LANG": "C.UTF-8"}

    async def _kill(self, mark: str, leader: int | None) -> None:
        await kill_tree(mark, leader)

    def _box(self, sandbox_id: str) -> _Box:
        try:
            return self._boxes[sandbox_id]
        except KeyError:
            raise SandboxNotFoundError(
                f"no sandbox {sandbox_id!r}; it may have ended",
                provider=self.name,
                sandbox_id=sandbox_id,
            ) from None

    async def _run(self, box: _Box, command: Command, output: Output) -> int:
        mark = secrets.token_hex(8)
        env = {
            **self._base_env(box),
            **box.spec.env,
            **box.spec.secrets,
            **command.env,
            MARKER: f"box:{box.folder}:{mark}",
        }
        cwd = _mapped(box, command.cwd or box.spec.workdir or "/workspace")
        if not os.access(cwd, os.X_OK) or not os.path.isdir(cwd):
            await output("stderr", f"cannot enter {command.cwd!r}: no such directory\n".encode())
            return 126
        try:
            process = await asyncio.create_subprocess_exec(
                *[_mapped(box, argument) for argument in command.argv],
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL if command.stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            await output("stderr", f"{command.argv[0]}: {error.strerror}\n".encode())
            return 127 if isinstance(error, FileNotFoundError) else 126
        assert process.stdout is not None
        assert process.stderr is not None
        returncode, done = 0, False
        try:
            async with anyio.create_task_group() as group:
                if command.stdin is not None:
                    group.start_soon(_feed, process, command)
                group.start_soon(_pump, process.stdout, "stdout", output)
                group.start_soon(_pump, process.stderr, "stderr", output)
                returncode = await _exit(process)
                done = True
                # A child may hold the pipes open: take what has arrived, then let go.
                group.cancel_scope.deadline = anyio.current_time() + _DRAIN_SECONDS
        finally:
            if not done:
                with anyio.CancelScope(shield=True):
                    await self._kill(f"box:{box.folder}:{mark}", process.pid)
                    await _exit(process)
            process._transport.close()  # type: ignore[attr-defined] # closes pipes a child holds
        return returncode if returncode >= 0 else 128 - returncode


async def _exit(process: asyncio.subprocess.Process) -> int:
    """Wait for the process alone; its own wait() also waits until nobody holds its pipes open."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        pass  # reaped already
    else:
        try:
            await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)
    while process.returncode is None:  # noqa: ASYNC110 - until asyncio has noticed it as well
        await anyio.sleep(0.001)
    return process.returncode


async def _feed(process: asyncio.subprocess.Process, command: Command) -> None:
    assert process.stdin is not None
    assert command.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        async for item in command.stdin:
            if isinstance(item, bytes):
                process.stdin.write(item)
                await process.stdin.drain()
    process.stdin.close()


async def _pump(reader: asyncio.StreamReader, stream: StreamName, output: Output) -> None:
    while chunk := await reader.read(1 << 16):
        await output(stream, chunk)


def _mapped(box: _Box, text: str) -> str:
    for prefix in ("/workspace", "/tmp"):
        if text == prefix or text.startswith(f"{prefix}/"):
            return f"{box.folder}{text}"
    return text


def _unmapped(box: _Box, info: FileInfo) -> FileInfo:
    return dataclasses.replace(info, path=info.path.removeprefix(str(box.folder)))


def _utc(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
