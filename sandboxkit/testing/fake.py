"""FakeProvider: runs real commands in a folder on this machine, for tests, without isolation.

A sandbox's ports are this machine's. Its processes are those with its mark in their environment, and below them.
"""

import asyncio
import builtins
import contextlib
import dataclasses
import datetime
import errno
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream

from sandboxkit.errors import (
    CommandStartError,
    ConfigurationError,
    OutcomeUnknownError,
    PortError,
    ProviderUnavailableError,
    SandboxPausedError,
    SandboxTerminatedError,
    SnapshotInUseError,
    SnapshotNotFoundError,
)
from sandboxkit.provider import (
    Box,
    FirstCommand,
    Output,
    PortListener,
    Provider,
    StreamName,
    is_alive,
    no_sandbox,
    owner_here,
)
from sandboxkit.testing import _commands
from sandboxkit.types import (
    Command,
    Exit,
    FileInfo,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    SnapshotInfo,
    SnapshotKind,
    SnapshotRequest,
)

_FOLDER = "sandboxkit-fake-"
_LOG_LIMIT = 1 << 20
_SILENCE = 2.0
"""Seconds of silence after which a connection counts as broken."""
_REMOVALS, _BETWEEN = 100, 0.05
"""How often a folder is removed before an error is raised, and the seconds between."""
MARKER = "SANDBOXKIT_FAKE"


def _new_folder() -> Path:
    """Make a folder for files, whose name has this process's."""
    return Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{owner_here()}-"))


def _remove_forgotten() -> None:
    """Remove the folders of processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        if is_alive(path.name.removeprefix(_FOLDER).rpartition("-")[0]) is False:
            shutil.rmtree(path, ignore_errors=True)


class FakeBox(Box):
    """One sandbox of a FakeProvider: a folder, and the processes that carry its mark."""

    def __init__(self, provider: "FakeProvider", sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self.backend = provider
        self.spec, self.folder = SandboxSpec(), Path()
        self.created = datetime.datetime.now(datetime.UTC)
        self.ends: float | None = None
        self.ended = anyio.Event()
        self.log: deque[bytes] = deque()
        self.main: asyncio.Task[Exit] | None = None
        self.timer: asyncio.Task[None] | None = None
        self.calls: set[anyio.CancelScope] = set()
        """The scopes of the calls in flight; `cut` and `delete` cancel them."""
        self.thawed: anyio.Event | None = None
        """Set when the sandbox is thawed; None unless it is frozen."""
        self.paused = False
        self.patience: asyncio.Task[None] | None = None

    async def start(self, spec: SandboxSpec) -> None:
        """Make the sandbox's folder, and start its main command."""
        self.spec, self.folder = spec, _new_folder()
        self.backend.boxes[self.id] = self
        if spec.snapshot is not None:
            self._copy(self.backend.snapshots[spec.snapshot][1], self.folder)
        for path in ("/workspace", "/tmp", spec.workdir or "/workspace"):
            Path(_mapped(self, path)).mkdir(parents=True, exist_ok=True)
        if spec.lifetime is not None:
            await self.renew(spec.lifetime)
        if spec.command is not None:

            async def log(stream: StreamName, chunk: bytes) -> None:
                self.log.append(chunk)
                while sum(map(len, self.log)) > _LOG_LIMIT + len(self.log[0]):
                    self.log.popleft()

            self.main = asyncio.create_task(self._run(Command(spec.command), log))

    def there(self) -> None:
        """Raise SandboxNotFoundError if the sandbox has been deleted, or never was."""
        if self.backend.boxes.get(self.id) is not self:
            raise no_sandbox(self.id)

    def described(self) -> SandboxInfo:
        """Return the sandbox's description."""
        return SandboxInfo(
            self.id,
            self.provider.name,
            SandboxState.PAUSED if self.paused else SandboxState.RUNNING,
            self.spec.tags,
            self.spec.image,
            self.created,
            None if self.ends is None else _utc(self.ends),
        )

    async def delete(self) -> None:
        """See `Box.delete`."""
        if self.backend.boxes.pop(self.id, None) is None:
            return
        self.ended.set()
        if self.patience is not None and self.patience is not asyncio.current_task():
            self.patience.cancel()
        if self.thawed is not None:
            self.thawed.set()
        if self.timer is not None and self.timer is not asyncio.current_task():
            self.timer.cancel()
        if self.main is not None:
            self.main.cancel()
        # Each call kills its own command, which just after `execve` shows no marker yet.
        for scope in tuple(self.calls):
            scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._kill(f"box:{self.folder}", None)
            # A command that its own call has yet to kill may make files while the folder is removed.
            for _ in range(_REMOVALS):
                shutil.rmtree(self.folder, ignore_errors=True)
                if not self.folder.exists():
                    return
                await anyio.sleep(_BETWEEN)
        shutil.rmtree(self.folder)

    async def take_snapshot(self, request: SnapshotRequest) -> SnapshotInfo:
        """See `Box.take_snapshot`."""
        self.there()
        await self._wait_while_frozen()
        self.backend.check_snapshot(self.spec, request.kind)
        folder = _new_folder()
        try:
            await self._stop()
            self._copy(self.folder, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            continue_tree(f"box:{self.folder}")
        info = SnapshotInfo(
            id=f"snapshot-{secrets.token_hex(8)}",
            provider=self.provider.name,
            kind=request.kind,
            bytes=sum(path.lstat().st_size for path in folder.rglob("*")),
            created_at=datetime.datetime.now(datetime.UTC),
            expires_at=_utc(request.expires),
            parent=self.spec.snapshot,
            name=request.name,
            tags=request.tags,
        )
        self.backend.snapshots[info.id] = info, folder
        return info

    def _copy(self, source: Path, target: Path) -> None:
        subprocess.run(["cp", "-a", "--", f"{source}/.", str(target)], check=True)

    async def _stop(self) -> None:
        await stop_tree(f"box:{self.folder}")

    async def exec(self, command: Command, output: Output) -> Exit:
        """See `Box.exec`."""
        self._running()
        if command.user is not None:
            raise ConfigurationError(f"user={command.user!r}: FakeProvider cannot change users")
        await self._wait_while_frozen()
        with self._in_flight():
            return await self._run(command, output)

    async def list_dir(self, path: str) -> builtins.list[FileInfo]:
        """See `Box.list_dir`."""
        self.there()
        return [_unmapped(self, info) for info in await super().list_dir(path)]

    async def stat(self, path: str) -> FileInfo:
        """See `Box.stat`."""
        self.there()
        return _unmapped(self, await super().stat(path))

    async def put_archive(self, path: str, tar: AsyncIterable[bytes]) -> None:
        """See `Box.put_archive`."""
        self.there()
        await super().put_archive(path, tar)

    async def renew(self, lifetime: float) -> None:
        """See `Box.renew`."""
        self.there()
        if self.timer is not None:
            self.timer.cancel()
        self.ends = datetime.datetime.now(datetime.UTC).timestamp() + lifetime

        async def end() -> None:
            await anyio.sleep(lifetime)
            await self.delete()

        self.timer = asyncio.create_task(end())

    async def logs(self) -> bytes:
        """See `Box.logs`."""
        self.there()
        return b"".join(self.log)

    async def wait(self) -> int:
        """See `Box.wait`."""
        self.there()
        if self.main is None:
            raise ConfigurationError(f"sandbox {self.id!r} has no main command to wait for")
        await self._wait_while_frozen()
        with self._in_flight():
            end = await asyncio.shield(self.main)
        return end.status

    async def check_ports(self) -> None:
        """See `Box.check_ports`; a sandbox's ports are those of this machine."""
        self.there()

    async def connect(self, port: int) -> ByteStream:
        """See `Box.connect`."""
        self._running()
        await self._wait_while_frozen()
        return await connect(port)

    async def listen(self, port: int) -> PortListener:
        """See `Box.listen`."""
        self._running()
        await self._wait_while_frozen()
        return await listen(port)

    async def pause(self) -> None:
        """See `Box.pause`."""
        self.there()
        self.paused = True
        await self._stop()

    async def resume(self) -> None:
        """See `Box.resume`."""
        self.there()
        if self.paused:
            continue_tree(f"box:{self.folder}")
            self.paused = False

    def _running(self) -> None:
        self.there()
        if self.paused:
            raise SandboxPausedError(f"sandbox {self.id!r} is paused: call resume() first")

    async def freeze(self) -> None:
        """Make the sandbox unresponsive; calls in flight and new ones fail after 2 s of silence."""
        self.there()
        self.thawed = anyio.Event()
        await stop_tree(f"box:{self.folder}")

        async def lose_patience() -> None:
            await anyio.sleep(_SILENCE)
            await self.cut()

        self.patience = asyncio.create_task(lose_patience())

    async def thaw(self) -> None:
        """Undo `freeze`."""
        self.there()
        if self.patience is not None:
            self.patience.cancel()
        if self.thawed is not None:
            self.thawed.set()
            self.thawed = None
        continue_tree(f"box:{self.folder}")

    async def cut(self) -> None:
        """Break the connection to the sandbox once: commands in flight raise OutcomeUnknownError."""
        self.there()
        for scope in tuple(self.calls):
            scope.cancel()

    async def _wait_while_frozen(self) -> None:
        """Wait while the sandbox is frozen. Raises ProviderUnavailableError after 2 s."""
        if self.thawed is not None:
            with anyio.move_on_after(_SILENCE) as waiting:
                await self.thawed.wait()
            if waiting.cancelled_caught:
                raise ProviderUnavailableError(
                    f"the sandbox in {self.folder} has been silent for {_SILENCE:g} s; the request was not "
                    "sent: try again when it is thawed"
                )

    @contextlib.contextmanager
    def _in_flight(self) -> Iterator[None]:
        scope = anyio.CancelScope()
        self.calls.add(scope)
        try:
            with scope:
                yield
        finally:
            self.calls.discard(scope)
        if self.ended.is_set():
            raise SandboxTerminatedError(f"sandbox {self.id!r} ended under the command")
        if scope.cancelled_caught:
            raise OutcomeUnknownError(
                f"the connection to the sandbox in {self.folder} broke after the command was sent: its "
                "outcome is unknown"
            )

    def _base_env(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LANG": "C.UTF-8"}

    async def _kill(self, mark: str, leader: int | None) -> None:
        await kill_tree(mark, leader)

    async def _run(self, command: Command, output: Output) -> Exit:
        mark = secrets.token_hex(8)
        env = {
            **self._base_env(),
            **self.spec.env,
            **self.spec.secrets,
            **command.env,
            MARKER: f"box:{self.folder}:{mark}",
        }
        cwd = _mapped(self, command.cwd or self.spec.workdir or "/workspace")
        try:
            os.close(os.open(cwd, os.O_PATH | os.O_DIRECTORY))
        except OSError as error:
            raise CommandStartError(
                f"cannot start in cwd={command.cwd!r}: {error.strerror}", errno=error.errno
            ) from error
        argv = [_mapped(self, argument) for argument in command.argv]

        async def kill(leader: int) -> None:
            await self._kill(f"box:{self.folder}:{mark}", leader)

        return await _commands.run(
            argv, cwd=cwd, env=env, command=command, output=output, kill=kill
        )


class FakeProvider(Provider):
    """A provider whose sandboxes are folders on this machine, and exist only within this object.

    Commands are real processes of the caller, in the caller's file system, so run only trusted code.
    /workspace and /tmp map to the sandbox's folder at the beginning of an argument, a `cwd` or a path of
    a file call. FakeProvider has no limits and cannot change users: `check` raises ConfigurationError
    for a spec that needs them.
    """

    name: ClassVar[str] = "fake"
    box_type: ClassVar[type[Box]] = FakeBox

    def __init__(self, kind: type[FakeBox] = FakeBox) -> None:
        """`kind` is the class of its boxes, which a test may change."""
        self._kind = kind
        self.boxes: dict[str, FakeBox] = {}
        self.snapshots: dict[str, tuple[SnapshotInfo, Path]] = {}
        _remove_forgotten()

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

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> FakeBox:
        """See `Provider.create`."""
        if spec.snapshot is not None and spec.snapshot not in self.snapshots:
            raise SnapshotNotFoundError(f"no snapshot {spec.snapshot!r}")
        box = self.box(f"fake-{secrets.token_hex(6)}")
        try:
            await box.start(spec)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await box.delete()
            raise
        return box

    def box(self, sandbox_id: str) -> FakeBox:
        """See `Provider.box`."""
        return self.boxes.get(sandbox_id) or self._kind(self, sandbox_id)

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """See `Provider.list`."""
        for box in tuple(self.boxes.values()):
            if tags.items() <= box.spec.tags.items():
                yield box.described()

    def check_snapshot(self, spec: SandboxSpec, kind: SnapshotKind) -> None:
        """See `Provider.check_snapshot`."""
        if kind != "files":
            raise ConfigurationError(f"kind={kind!r}: FakeProvider keeps only files; use 'files'")

    async def list_snapshots(self, tags: Mapping[str, str]) -> AsyncIterator[SnapshotInfo]:
        """See `Provider.list_snapshots`."""
        for info, _ in list(self.snapshots.values()):
            if tags.items() <= info.tags.items():
                yield info

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """See `Provider.delete_snapshot`."""
        users = [name for name, box in self.boxes.items() if box.spec.snapshot == snapshot_id]
        if users:
            raise SnapshotInUseError(
                f"snapshot {snapshot_id!r} is in use by {', '.join(users)}: stop them first"
            )
        _, folder = self.snapshots.pop(snapshot_id, (None, None))
        if folder is not None:
            shutil.rmtree(folder)

    async def aclose(self) -> None:
        """Remove the snapshots, which exist only within this object; see `Provider.aclose`."""
        for _, folder in self.snapshots.values():
            shutil.rmtree(folder, ignore_errors=True)
        self.snapshots.clear()

    def check_pause(self) -> None:
        """See `Provider.check_pause`."""


def _mapped(box: FakeBox, text: str) -> str:
    for prefix in ("/workspace", "/tmp"):
        if text == prefix or text.startswith(f"{prefix}/"):
            return f"{box.folder}{text}"
    return text


def _unmapped(box: FakeBox, info: FileInfo) -> FileInfo:
    return dataclasses.replace(info, path=info.path.removeprefix(str(box.folder)))


def _utc(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


class FakeConnection(ByteStream):
    """A TCP connection on this machine. Closing it before both directions have ended resets it."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._open = {"in", "out"}

    async def receive(self, max_bytes: int = 65536) -> bytes:
        try:
            return await self._stream.receive(max_bytes)
        except anyio.EndOfStream:
            self._open.discard("in")
            raise

    async def send(self, item: bytes) -> None:
        await self._stream.send(item)

    async def send_eof(self) -> None:
        self._open.discard("out")
        await self._stream.send_eof()

    async def aclose(self) -> None:
        sock = self._stream.extra(SocketAttribute.raw_socket)
        if self._open and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self._stream.aclose()


class FakePortListener(PortListener):
    """A port of this machine's loopback."""

    def __init__(self, port: int, listener: SocketListener) -> None:
        super().__init__(port)
        self._listener, self._turn = listener, anyio.Lock()

    async def accept(self) -> ByteStream:
        async with self._turn:
            return FakeConnection(await self._listener.accept())

    async def aclose(self) -> None:
        await self._listener.aclose()


async def connect(port: int) -> ByteStream:
    """Connect to a port of this machine. Raises PortError."""
    try:
        return FakeConnection(await anyio.connect_tcp("127.0.0.1", port))
    except OSError as error:
        raise _refused(port, error.__cause__ or error) from error


async def listen(port: int) -> PortListener:
    """Listen on a port of this machine. Raises PortError."""
    try:
        several = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    except OSError as error:
        raise _refused(port, error) from error
    listener = several.listeners[0]
    assert isinstance(listener, SocketListener)
    return FakePortListener(listener.extra(SocketAttribute.local_port), listener)


def _refused(port: int, error: BaseException) -> PortError:
    number = getattr(error, "errno", None) or errno.EIO
    return PortError(f"port {port}: {os.strerror(number).lower()}", errno=number)


async def kill_tree(mark: str, leader: int | None) -> None:
    """Kill every process whose environment carries `mark`, and the descendants and session of
    `leader`; return when all are dead."""
    struck: dict[int, bytes] = {}
    while found := members(mark, leader):
        for pid in found:
            signal_process(pid, signal.SIGSTOP)
        for pid in members(mark, leader):
            struck[pid] = began(pid)
            signal_process(pid, signal.SIGKILL)
        await anyio.sleep(0.001)
    # Wait for killed processes too that left the tree when their parents died.
    while any(start and began(pid) == start for pid, start in struck.items()):  # noqa: ASYNC110
        await anyio.sleep(0.001)


async def stop_tree(mark: str) -> None:
    """Stop every process whose environment carries `mark`; return when all have stopped."""
    stopped: set[int] = set()
    while more := members(mark, None) - stopped:
        for pid in more:
            signal_process(pid, signal.SIGSTOP)
        stopped |= more
        await anyio.sleep(0.001)


def continue_tree(mark: str) -> None:
    """Undo `stop_tree`."""
    for pid in members(mark, None):
        signal_process(pid, signal.SIGCONT)


def members(mark: str, leader: int | None) -> set[int]:
    """Return the processes that `kill_tree` would kill now."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    needle = mark.encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fields = _fields(name)
            if fields[0] == b"Z":
                continue
            with open(f"/proc/{name}/environ", "rb") as file:
                marked = needle in file.read()
        except OSError:
            continue  # gone meanwhile, or another user's
        pid = int(name)
        parents[pid] = int(fields[1])
        if marked or (leader is not None and (pid == leader or int(fields[3]) == leader)):
            found.add(pid)
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found - {os.getpid()}
        found |= more


def began(pid: int) -> bytes:
    """Return a process's start time from /proc; empty if it has ended."""
    try:
        fields = _fields(str(pid))
    except OSError:
        return b""
    return b"" if fields[0] in (b"Z", b"X") else fields[19]


def _fields(pid: str) -> list[bytes]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def signal_process(pid: int, signum: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass
