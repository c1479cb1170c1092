"""FakeProvider: runs real commands in a folder on this machine, for tests, without isolation."""

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
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import (
    CommandStartError,
    ConfigurationError,
    OutcomeUnknownError,
    ProviderUnavailableError,
    SandboxNotFoundError,
    SandboxPausedError,
    SandboxTerminatedError,
    SnapshotInUseError,
    SnapshotNotFoundError,
)
from sandboxkit.provider import Output, PortListener, Provider, StreamName
from sandboxkit.testing import _commands, _ports
from sandboxkit.testing._tree import MARKER, continue_tree, kill_tree, stop_tree
from sandboxkit.types import (
    Command,
    Exit,
    FileInfo,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    SnapshotInfo,
    SnapshotKind,
)

_LOG_LIMIT = 1 << 20
_SILENCE = 2.0
"""Seconds of silence after which a connection counts as broken."""


@dataclasses.dataclass
class _Box:
    spec: SandboxSpec
    folder: Path
    created: datetime.datetime
    ends: float | None
    ended: anyio.Event
    log: deque[bytes]
    main: "asyncio.Task[Exit] | None" = None
    timer: "asyncio.Task[None] | None" = None
    calls: set[anyio.CancelScope] = dataclasses.field(default_factory=set)
    """The scopes of the calls in flight; `cut` and `delete` cancel them."""
    thawed: anyio.Event | None = None
    """Set when the sandbox is thawed; None unless it is frozen."""
    paused: bool = False
    patience: "asyncio.Task[None] | None" = None


class FakeProvider(Provider):
    """A provider whose sandboxes are folders on this machine, and exist only within this object.

    Commands are real processes of the caller, in the caller's file system, so run only trusted code.
    /workspace and /tmp map to the sandbox's folder at the beginning of an argument, a `cwd` or a path of
    a file call. FakeProvider has no limits and cannot change users: `check` raises ConfigurationError
    for a spec that needs them.
    """

    name: ClassVar[str] = "fake"

    def __init__(self) -> None:
        self._boxes: dict[str, _Box] = {}
        self._snapshots: dict[str, tuple[SnapshotInfo, Path]] = {}

    def check(self, spec: SandboxSpec) -> None:
        """Refuse options that a folder cannot honour; see `Provider.check`."""
        for field in ("user", "cpus", "memory_mb", "disk_mb", "pids", "gpu"):
            if getattr(spec, field) is not None:
                raise ConfigurationError(
                    f"{field}={getattr(spec, field)!r}: FakeProvider has no limits"
                )
        if spec.mounts:
            raise ConfigurationError(
                f"mounts={spec.mounts!r}: FakeProvider mounts nothing; use provider='local'"
            )

    async def create(self, spec: SandboxSpec) -> str:
        """See `Provider.create`."""
        if spec.snapshot is not None and spec.snapshot not in self._snapshots:
            raise SnapshotNotFoundError(f"no snapshot {spec.snapshot!r}", provider=self.name)
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
        if spec.snapshot is not None:
            self._copy(self._snapshots[spec.snapshot][1], folder)
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
                    SandboxState.PAUSED if box.paused else SandboxState.RUNNING,
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
        if box.patience is not None and box.patience is not asyncio.current_task():
            box.patience.cancel()
        if box.thawed is not None:
            box.thawed.set()
        if box.timer is not None and box.timer is not asyncio.current_task():
            box.timer.cancel()
        if box.main is not None:
            box.main.cancel()
        # Each call kills its own command, which just after `execve` shows no marker yet.
        for scope in tuple(box.calls):
            scope.cancel()
        await self._kill(f"box:{box.folder}", None)
        shutil.rmtree(box.folder, ignore_errors=True)

    def check_snapshot(self, spec: SandboxSpec, kind: SnapshotKind) -> None:
        """See `Provider.check_snapshot`."""
        if kind != "files":
            raise ConfigurationError(
                f"kind={kind!r}: FakeProvider keeps only files; use 'files'", provider=self.name
            )

    async def take_snapshot(
        self,
        sandbox_id: str,
        *,
        kind: SnapshotKind,
        name: str | None,
        tags: Mapping[str, str],
        expires: float,
    ) -> SnapshotInfo:
        """See `Provider.take_snapshot`."""
        box = self._box(sandbox_id)
        await self._wait_while_frozen(box)
        self.check_snapshot(box.spec, kind)
        folder = Path(tempfile.mkdtemp(prefix="sandboxkit-fake-"))
        await self._stop(box)
        try:
            self._copy(box.folder, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            continue_tree(f"box:{box.folder}")
        info = SnapshotInfo(
            id=f"snapshot-{secrets.token_hex(8)}",
            provider=self.name,
            kind=kind,
            bytes=sum(path.lstat().st_size for path in folder.rglob("*")),
            created_at=datetime.datetime.now(datetime.UTC),
            expires_at=_utc(expires),
            parent=box.spec.snapshot,
            name=name,
            tags=tags,
        )
        self._snapshots[info.id] = info, folder
        return info

    async def list_snapshots(self, tags: Mapping[str, str]) -> AsyncIterator[SnapshotInfo]:
        """See `Provider.list_snapshots`."""
        for info, _ in list(self._snapshots.values()):
            if tags.items() <= info.tags.items():
                yield info

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """See `Provider.delete_snapshot`."""
        users = [name for name, box in self._boxes.items() if box.spec.snapshot == snapshot_id]
        if users:
            raise SnapshotInUseError(
                f"snapshot {snapshot_id!r} is in use by {', '.join(users)}: stop them first",
                provider=self.name,
            )
        _, folder = self._snapshots.pop(snapshot_id, (None, None))
        if folder is not None:
            shutil.rmtree(folder)

    async def aclose(self) -> None:
        """Remove the snapshots, which exist only within this object; see `Provider.aclose`."""
        for _, folder in self._snapshots.values():
            shutil.rmtree(folder, ignore_errors=True)
        self._snapshots.clear()

    def _copy(self, source: Path, target: Path) -> None:
        subprocess.run(["cp", "-a", "--", f"{source}/.", str(target)], check=True)

    async def _stop(self, box: _Box) -> None:
        await stop_tree(f"box:{box.folder}")

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        """See `Provider.exec`."""
        box = self._running(sandbox_id)
        if command.user is not None:
            raise ConfigurationError(f"user={command.user!r}: FakeProvider cannot change users")
        await self._wait_while_frozen(box)
        with self._in_flight(sandbox_id, box):
            return await self._run(box, command, output)

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
        box = self._box(sandbox_id)
        if box.main is None:
            raise ConfigurationError(f"sandbox {sandbox_id!r} has no main command to wait for")
        await self._wait_while_frozen(box)
        with self._in_flight(sandbox_id, box):
            end = await asyncio.shield(box.main)
        return end.status

    async def check_ports(self, sandbox_id: str) -> None:
        """See `Provider.check_ports`; a sandbox's ports are those of this machine."""
        self._box(sandbox_id)

    async def connect(self, sandbox_id: str, port: int) -> ByteStream:
        """See `Provider.connect`."""
        await self._wait_while_frozen(self._running(sandbox_id))
        return await _ports.connect(port)

    async def listen(self, sandbox_id: str, port: int) -> PortListener:
        """See `Provider.listen`."""
        await self._wait_while_frozen(self._running(sandbox_id))
        return await _ports.listen(port)

    def check_pause(self) -> None:
        """See `Provider.check_pause`."""

    async def pause(self, sandbox_id: str) -> None:
        """See `Provider.pause`."""
        box = self._box(sandbox_id)
        box.paused = True
        await self._stop(box)

    async def resume(self, sandbox_id: str) -> None:
        """See `Provider.resume`."""
        box = self._box(sandbox_id)
        if box.paused:
            continue_tree(f"box:{box.folder}")
            box.paused = False

    def _running(self, sandbox_id: str) -> _Box:
        box = self._box(sandbox_id)
        if box.paused:
            raise SandboxPausedError(
                f"sandbox {sandbox_id!r} is paused: call resume() first",
                provider=self.name,
                sandbox_id=sandbox_id,
            )
        return box

    async def freeze(self, sandbox_id: str) -> None:
        """Make the sandbox unresponsive; calls in flight and new ones fail after 2 s of silence."""
        box = self._box(sandbox_id)
        box.thawed = anyio.Event()
        await stop_tree(f"box:{box.folder}")

        async def lose_patience() -> None:
            await anyio.sleep(_SILENCE)
            await self.cut(sandbox_id)

        box.patience = asyncio.create_task(lose_patience())

    async def thaw(self, sandbox_id: str) -> None:
        """Undo `freeze`."""
        box = self._box(sandbox_id)
        if box.patience is not None:
            box.patience.cancel()
        if box.thawed is not None:
            box.thawed.set()
            box.thawed = None
        continue_tree(f"box:{box.folder}")

    async def cut(self, sandbox_id: str) -> None:
        """Break the connection to the sandbox once: commands in flight raise OutcomeUnknownError."""
        for scope in tuple(self._box(sandbox_id).calls):
            scope.cancel()

    async def _wait_while_frozen(self, box: _Box) -> None:
        """Wait while the sandbox is frozen. Raises ProviderUnavailableError after 2 s."""
        if box.thawed is not None:
            with anyio.move_on_after(_SILENCE) as waiting:
                await box.thawed.wait()
            if waiting.cancelled_caught:
                raise ProviderUnavailableError(
                    f"the sandbox in {box.folder} has been silent for {_SILENCE:g} s; the request was not "
                    "sent: try again when it is thawed",
                    provider=self.name,
                )

    @contextlib.contextmanager
    def _in_flight(self, sandbox_id: str, box: _Box) -> Iterator[None]:
        scope = anyio.CancelScope()
        box.calls.add(scope)
        try:
            with scope:
                yield
        finally:
            box.calls.discard(scope)
        if box.ended.is_set():
            raise SandboxTerminatedError(
                f"sandbox {sandbox_id!r} ended under the command",
                provider=self.name,
                sandbox_id=sandbox_id,
            )
        if scope.cancelled_caught:
            raise OutcomeUnknownError(
                f"the connection to the sandbox in {box.folder} broke after the command was sent: its "
                "outcome is unknown",
                provider=self.name,
            )

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

    async def _run(self, box: _Box, command: Command, output: Output) -> Exit:
        mark = secrets.token_hex(8)
        env = {
            **self._base_env(box),
            **box.spec.env,
            **box.spec.secrets,
            **command.env,
            MARKER: f"box:{box.folder}:{mark}",
        }
        cwd = _mapped(box, command.cwd or box.spec.workdir or "/workspace")
        try:
            os.close(os.open(cwd, os.O_PATH | os.O_DIRECTORY))
        except OSError as error:
            raise CommandStartError(
                f"cannot start in cwd={command.cwd!r}: {error.strerror}",
                errno=error.errno,
                provider=self.name,
            ) from error
        argv = [_mapped(box, argument) for argument in command.argv]

        async def kill(leader: int) -> None:
            await self._kill(f"box:{box.folder}:{mark}", leader)

        return await _commands.run(
            argv, cwd=cwd, env=env, command=command, output=output, kill=kill
        )


def _mapped(box: _Box, text: str) -> str:
    for prefix in ("/workspace", "/tmp"):
        if text == prefix or text.startswith(f"{prefix}/"):
            return f"{box.folder}{text}"
    return text


def _unmapped(box: _Box, info: FileInfo) -> FileInfo:
    return dataclasses.replace(info, path=info.path.removeprefix(str(box.folder)))


def _utc(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
