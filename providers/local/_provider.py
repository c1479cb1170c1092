"""The local provider: sandboxes on this machine's kernel, without a daemon and without root."""

import asyncio
import builtins
import errno
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import ClassVar

import anyio
import anyio.to_thread
from anyio.abc import ByteStream, SocketAttribute

from sandboxkit.errors import (
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.provider import (
    Box,
    DatasetStore,
    FirstCommand,
    Output,
    PortListener,
    close_in_forks,
    no_sandbox,
    owner_here,
    split_mounts,
)
from sandboxkit.providers._agent.box import AgentBox, AgentProvider
from sandboxkit.providers._agent.launch import config_of
from sandboxkit.providers._agent.unix import UnixStream
from sandboxkit.providers._gvisor import GAVE_UP, PIDS, is_gvisor
from sandboxkit.providers.local import (
    _cgroup,
    _doctor,
    _gvisor,
    _landlock,
    _layout,
    _spec,
    _state,
    _sweep,
)
from sandboxkit.providers.local._base import Base
from sandboxkit.providers.local._counters import Counters, attributed, out_of_memory
from sandboxkit.providers.local._host_user import HostUser
from sandboxkit.providers.local._landlock import is_landlock
from sandboxkit.providers.local._launch import Launched, launch
from sandboxkit.providers.local._snapshots import LocalSnapshots
from sandboxkit.providers.local._start_errors import not_started, start_failure
from sandboxkit.providers.local._volumes import LocalVolumes
from sandboxkit.types import (
    Command,
    Diagnosis,
    Exit,
    SandboxInfo,
    SandboxSpec,
    SnapshotInfo,
    SnapshotRequest,
)

_PIDS = 256
_DISK_MB = 1024
_KILL_PATIENCE = _LATE = 5.0
_AT_ONCE = 0.001
_AGENT_PIDS = 32
"""Pids for bubblewrap and the agent's threads, in addition to the sandbox's limit. With Landlock there is a supervisor,
whose threads are as many at most."""


class LocalBox(AgentBox):
    """One sandbox of this machine."""

    def __init__(self, provider: "LocalProvider", sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self.backend = provider
        self.launched: Launched | None = None
        """The sandbox's processes while they run, if this provider started them."""
        self.detached = False
        self.user: str | None = None
        self.out_of_memory = False
        self.gvisor: Launched | None = None
        """The sandbox's processes if it has gVisor, also after their end."""
        self.by_command = False
        """Whether gVisor ended by itself, which its programs alone can cause."""

    def publish(
        self,
        spec: SandboxSpec,
        begun: _state.SandboxFolder,
        launched: Launched,
        image: _state.UsedImage | None,
    ) -> None:
        """Record a sandbox that has started, and watch its processes."""
        if not launched.find_init():
            raise ProviderUnavailableError(f"sandbox {self.id!r} ended while it started")
        instead: dict[int, int] = {}
        if "pids" not in _cgroup.available():
            # The sandbox's own user namespace counts only its own processes.
            instead[resource.RLIMIT_NPROC] = _PIDS + _AGENT_PIDS
        if "memory" not in _cgroup.available():
            instead[resource.RLIMIT_DATA] = _layout.MEMORY_MB << 20
        if self.backend.host.may_limit and not (is_gvisor(spec) or is_landlock(spec)):
            launched.limit(launched.init_pid, instead)
        now = time.time()
        user, (datasets, volumes) = _spec.USERS[spec.user], split_mounts(spec.mounts)
        self.backend.state.publish(
            begun,
            _state.SandboxRecord(
                id=self.id,
                tags=dict(spec.tags),
                image=spec.image,
                user=user,
                created=now,
                expires=None if spec.lifetime is None else now + spec.lifetime,
                processes=launched.processes(),
                cgroups=launched.groups,
                maker=owner_here(),
                detached=spec.detach,
                datasets=sorted(set(datasets.values())),
                volumes=sorted(set(volumes.values())),
                snapshot=spec.snapshot,
                folders=_layout.kept_folders(spec),
                isolation=spec.isolation,
                used_image=image,
            ),
        )
        self.launched, self.user, self.detached = launched, user, spec.detach
        self.gvisor = launched if is_gvisor(spec) else None
        launched.on_exit = lambda: self._ended(launched)
        if spec.lifetime is not None:
            self.timer = asyncio.create_task(self._expire(spec.lifetime, now + spec.lifetime))

    def _ended(self, launched: Launched) -> None:
        """Record why a sandbox of ours ended, and remove its control groups and folder."""
        self.out_of_memory = out_of_memory(launched.groups)
        self.by_command = self.gvisor is not None and _gvisor.gave_up(launched.status)
        self.launched = None
        self.clear(launched.groups)

    def clear(self, groups: list[str]) -> bool:
        """Remove an ended sandbox's groups and folder; return False while the kernel uses a group."""
        if _cgroup.try_remove(groups):
            self.backend.remains[self.id] = groups
            return False  # the folder stays, so that a later sweep tries again
        self.backend.remains.pop(self.id, None)
        _cgroup.remove_parents(groups)
        folder = self.backend.state.folder(self.id)
        if not self.backend.state.has_work(folder):
            self.backend.state.remove(folder)
        elif self.id not in self.backend.discards:
            # In a thread: its programs may have made many files.
            loop = asyncio.get_running_loop()
            self.backend.discards[self.id] = loop.run_in_executor(
                None, self.backend.state.remove, folder
            )
        return True

    async def remove_files(self, groups: list[str]) -> bool:
        with anyio.move_on_after(_KILL_PATIENCE):
            # A dead process counts as a member for a moment; no event tells when that ends.
            while not self.clear(groups):  # noqa: ASYNC110
                await anyio.sleep(0.001)
            if (discard := self.backend.discards.get(self.id)) is not None:
                await asyncio.wait([discard])
                self.backend.discards.pop(self.id, None)
            return True
        return False

    async def delete(self) -> None:
        async with self.deletion():
            meta, launched = self.backend.state.load(self.id), self.launched
            if launched is None and meta is not None and not meta.is_here:
                await self._end_elsewhere(meta)
            await self.disconnect()
            with anyio.CancelScope(shield=True):
                if launched is not None:
                    await launched.kill()
                    await self.remove_files(launched.groups)
                elif meta is not None:
                    await anyio.to_thread.run_sync(_sweep.end, meta, _KILL_PATIENCE)
                    await anyio.to_thread.run_sync(_cgroup.kill_members, meta.cgroups)
                    await self.remove_files(meta.cgroups)

    async def _end_elsewhere(self, meta: _state.SandboxRecord) -> None:
        """End a sandbox of another pid namespace, by setting its lifetime to almost nothing.

        Raises ProviderUnavailableError if it still runs after 5 s.
        """
        with suppress(SandboxNotFoundError, SandboxTerminatedError):
            await super().renew(_AT_ONCE)
        with anyio.move_on_after(_KILL_PATIENCE):
            while self.backend.state.alive(meta):  # noqa: ASYNC110  # no event tells
                await anyio.sleep(0.01)
            return
        raise ProviderUnavailableError(
            f"sandbox {self.id!r} cannot be ended here: it was started in another container; delete it there"
        )

    async def info(self) -> SandboxInfo:
        return self._living().info(self.provider.name)

    async def check_ports(self) -> None:
        self._require_network()
        await super().check_ports()

    async def connect(self, port: int) -> ByteStream:
        self._require_network()
        return await super().connect(port)

    async def listen(self, port: int) -> PortListener:
        self._require_network()
        return await super().listen(port)

    def _require_network(self) -> None:
        """Raise ConfigurationError for a sandbox that has no loopback of its own."""
        meta = self.backend.state.load(self.id)
        if meta is not None and meta.isolation == "landlock":
            raise ConfigurationError(f"sandbox {self.id!r} has no ports: {_landlock.LOOPBACK}")

    def _living(self) -> _state.SandboxRecord:
        meta = self.backend.state.load(self.id)
        if meta is None or not self.backend.state.alive(meta):
            raise no_sandbox(self.id)
        return meta

    async def _connect(self) -> ByteStream:
        if (meta := self._living()).isolation == "gvisor":
            return UnixStream(_gvisor.connect(meta))
        try:
            place = os.open(self.backend.state.folder(self.id), os.O_PATH | os.O_CLOEXEC)
        except OSError:
            self._living()
            raise
        try:
            stream = await UnixStream.connect(f"/proc/self/fd/{place}/{_state.SOCKET}")
        except OSError as error:
            raise SandboxNotFoundError(
                f"sandbox {self.id!r} has ended: {os.strerror(error.errno or errno.EIO)}"
            ) from error
        finally:
            os.close(place)
        # A fork must not keep it open: the agent ends a client's commands when the connection closes.
        close_in_forks(stream.extra(SocketAttribute.raw_socket))
        return stream

    async def _why_ended(self, reason: str) -> SandboxError:
        meta = self.backend.state.load(self.id)
        if not reason and self.gvisor and not self.deletions:
            with anyio.move_on_after(_KILL_PATIENCE):
                await self.gvisor.exited.wait()  # later than the end of the connection
        if not reason and (
            self.out_of_memory or (meta is not None and out_of_memory(meta.cgroups))
        ):
            return SandboxTerminatedError(
                f"sandbox {self.id!r} ended: it was out of memory", out_of_memory=True
            )
        if (taken := _landlock.why_ended(self.id, reason)) is not None:
            return taken
        if not reason and self.by_command:
            return SandboxTerminatedError(f"sandbox {self.id!r} ended: {GAVE_UP}", by_command=True)
        return await super()._why_ended(reason)

    async def exec(self, command: Command, output: Output) -> Exit:
        if command.user is not None:
            own = self.user or self._living().user
            if _spec.USERS.get(command.user) != own:
                raise ConfigurationError(
                    f"user={command.user!r}: this sandbox's only user is {own!r}; a local "
                    "sandbox runs everything as one, chosen with user= when it is made"
                )
            command = replace(command, user=None)  # which the agent need not know by name
        return await self._counted(partial(super().exec, command, output))

    async def run_python(self, code: str, command: Command, output: Output) -> Exit:
        return await self._counted(partial(super().run_python, code, command, output))

    async def _counted(self, run: Callable[[], Awaitable[Exit]]) -> Exit:
        with self._counters() as counters:
            before = counters.read()
            ended = await run()
            return attributed(ended, before, counters.read())

    @contextmanager
    def _counters(self) -> Iterator[Counters]:
        launched = self.launched
        if launched is not None:
            yield launched.counters
            return
        meta = self.backend.state.load(self.id)
        with closing(Counters([] if meta is None else meta.cgroups)) as counters:
            yield counters

    async def renew(self, lifetime: float) -> None:
        await super().renew(lifetime)
        expires = time.time() + lifetime
        if self.launched:
            await self.set_timer(self._expire(lifetime, expires))
        self._note("renewed", lambda meta: replace(meta, expires=expires))

    async def _expire(self, lifetime: float, expires: float) -> None:
        """End a sandbox whose agent does not, unless another process has moved the end in its record."""
        while lifetime > 0:
            await anyio.sleep(lifetime + _LATE)
            meta = self.backend.state.load(self.id)
            before, expires = expires, (meta and meta.expires) or expires
            lifetime = expires - before  # which does not depend on how this machine's clock is set
        await self._force("lifetime")

    async def take_snapshot(self, request: SnapshotRequest) -> SnapshotInfo:
        return await self.backend.take_snapshot_of(self._living(), request)

    async def pause(self) -> None:
        await super().pause()
        try:
            self._note("paused", lambda meta: replace(meta, paused=True))
        except ProviderUnavailableError:
            await super().resume()
            raise

    async def resume(self) -> None:
        await super().resume()
        self._note("resumed", lambda meta: replace(meta, paused=False))

    def _note(
        self, done: str, change: Callable[[_state.SandboxRecord], _state.SandboxRecord]
    ) -> None:
        """Change a sandbox's record. Raises ProviderUnavailableError if it cannot be written."""
        meta = self.backend.state.load(self.id)
        if meta is not None:
            try:
                self.backend.state.update(change(meta))
            except OSError as error:
                raise ProviderUnavailableError(
                    f"sandbox {self.id!r} was {done}, but this cannot be recorded in "
                    f"{self.backend.state.path}: {error.strerror}; free space there and try again"
                ) from error

    async def _kill(self) -> bool:
        if launched := self.launched:
            await launched.kill()
        return launched is not None

    def _agent_pid(self) -> int | None:
        return None if self.launched is None else self.launched.init_pid

    def _processor_seconds(self) -> float | None:
        with self._counters() as counters:
            return counters.processor_seconds()


class LocalProvider(LocalSnapshots, AgentProvider[LocalBox]):
    """Runs the agent under bubblewrap, with namespaces, seccomp and control groups.

    `image` is a folder with a root file system, an archive of an image (OCI layout or `docker save`), or
    "docker://NAME", an image of a registry that skopeo pulls. None means the host's own programs,
    read-only, and the running Python.
    """

    name: ClassVar[str] = "local"
    on_this_machine: ClassVar[bool] = True
    box_type: ClassVar[type[Box]] = LocalBox

    def __init__(self) -> None:
        super().__init__()
        self.state = _state.StateDir()
        self.host = HostUser()
        self._datasets: dict[str, str] = {}
        """Folders of the datasets that sandboxes have mounted."""
        self.remains: dict[str, list[str]] = {}
        """Control groups of ended sandboxes that could not be removed because the kernel still used
        them. Each creation, and the provider's `aclose`, tries to remove them again."""
        self.discards: dict[str, asyncio.Future[None]] = {}
        """Folders of ended sandboxes that are being removed."""
        self._volumes = LocalVolumes(self.state, self.host.owner())
        self._sweeper = _sweep.LocalSweeper(self.state, self._runs_here)

    def check(self, spec: SandboxSpec) -> None:
        if sys.platform != "linux":
            raise ConfigurationError("the local provider needs Linux: use provider='docker'")
        _spec.check(_landlock.chosen(spec))

    def check_pause(self) -> None:
        pass

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> LocalBox:
        self.check(spec)
        spec = _landlock.chosen(spec)
        if is_gvisor(spec):
            _gvisor.find()
            # gVisor bounds the files of a folder in its memory, and not those of a root.
            spec = replace(spec, profile="strict")
        with self._base_of(spec) as base:
            return await self._create(spec, base)

    async def _create(self, spec: SandboxSpec, base: Base | None) -> LocalBox:
        spec, image = await self._on_base(spec, base)
        datasets, volumes = split_mounts(spec.mounts)
        mounts = {point: await self._stored(digest) for point, digest in datasets.items()}
        for ended, groups in tuple(self.remains.items()):
            self.box(ended).clear(groups)
        begun = self.state.begin()
        self._sweeper.start()
        box, groups = self.box(begun.sandbox_id), []
        launched: Launched | None = None
        held = ExitStack()
        try:
            folders = held.enter_context(self._volumes.held(volumes))
            limits = self._limits(spec)
            groups = _cgroup.plan(box.id, limits, detached=spec.detach)
            # Recorded before they exist, so that a sweep after our death finds all of them.
            begun.note_groups(groups)
            try:
                _cgroup.create(groups, limits)
            except OSError as error:
                raise start_failure(
                    f"the sandbox's control groups cannot be made: {error}"
                ) from error
            launched, connection = await launch(
                spec,
                self.host,
                begun,
                image=image,
                disk_mb=_disk_mb(spec),
                pids=spec.pids or _PIDS,
                groups=groups,
                mounts=mounts,
                volumes=folders,
                base=base,
            )
            stream = UnixStream(connection)
            try:
                await box.attach(stream, config_of(spec))
            except SandboxStartError as error:
                await launched.kill()
                if not launched.stderr_text():
                    raise
                raise not_started(spec, launched.stderr_text()) from error
            box.publish(spec, begun, launched, None if image is None else image.used())
        except BaseException:
            with anyio.CancelScope(shield=True):
                await box.forget()
                if launched is not None:
                    await launched.kill()
                if await box.remove_files(groups):
                    self.state.remove(begun.folder)
                begun.close()
            raise
        finally:
            held.close()
        return box

    async def _stored(self, digest: str) -> str:
        """Return a dataset's folder, which stays in the store until this process ends."""
        folder = self._datasets.get(digest, "")
        if not os.path.isdir(folder):
            # In a thread: it may wait for a process that stores another dataset.
            folder = str(await anyio.to_thread.run_sync(DatasetStore().use, digest))
            self._datasets[digest] = folder
        return folder

    def _limits(self, spec: SandboxSpec) -> _cgroup.CgroupLimits:
        own = 2 * _AGENT_PIDS if is_landlock(spec) else _AGENT_PIDS
        return _cgroup.CgroupLimits(
            # Files are in memory. The default adds disk_mb; a given memory_mb limits both together.
            memory_mb=spec.memory_mb or _layout.MEMORY_MB + _disk_mb(spec),
            pids=PIDS if is_gvisor(spec) else (spec.pids or _PIDS) + own,
            cpus=spec.cpus,
        )

    def _runs_here(self, sandbox_id: str) -> bool:
        return self.box(sandbox_id).launched is not None

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        living = await anyio.to_thread.run_sync(_sweep.sweep, self.state, self._runs_here)
        for meta in living:
            if tags.items() <= meta.tags.items():
                yield meta.info(self.name)

    async def remove_unused_datasets(self, *, dry_run: bool = False) -> builtins.list[str]:
        def in_use() -> set[str]:
            living = _sweep.sweep(self.state, self._runs_here)
            return {digest for meta in living for digest in meta.datasets}

        store = DatasetStore()
        return await anyio.to_thread.run_sync(lambda: store.remove_unused(in_use, dry_run=dry_run))

    async def list_volumes(self) -> builtins.list[str]:
        return self._volumes.names()

    async def remove_volume(self, name: str) -> None:
        def in_use() -> set[str]:
            living = _sweep.sweep(self.state, self._runs_here)
            return {name for meta in living for name in meta.volumes}

        await anyio.to_thread.run_sync(self._volumes.remove, name, in_use)

    async def diagnose(self) -> Diagnosis:
        async def start(spec: SandboxSpec) -> None:
            await (await self.create(spec)).delete()

        return await _doctor.diagnose(self.host, start)

    async def aclose(self) -> None:
        for box in self.kept():
            if box.launched is not None and not box.detached:
                await box.delete()
        for box in self.kept():
            if box.launched is not None:
                box.launched.on_exit = None
                box.launched.release()
        for sandbox_id, groups in tuple(self.remains.items()):
            await self.box(sandbox_id).remove_files(groups)
        if self.discards:
            await asyncio.wait(self.discards.values())
        await super().aclose()
        self.host.close()
        self._sweeper.stop()
        while self._sweeper.running:  # noqa: ASYNC110  # at exit no thread can start to join it
            await anyio.sleep(0.002)


def _disk_mb(spec: SandboxSpec) -> int:
    """Return the disk size (MB); by default at most half of `memory_mb`, because files use memory."""
    if spec.disk_mb is not None:
        return spec.disk_mb
    return _DISK_MB if spec.memory_mb is None else min(_DISK_MB, spec.memory_mb // 2)
