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
from dataclasses import dataclass, replace
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
from sandboxkit.provider import DatasetStore, Output, close_in_forks, split_mounts
from sandboxkit.providers._agent.instance import Instance
from sandboxkit.providers._agent.launch import config_of
from sandboxkit.providers._agent.pausing import PausingProvider
from sandboxkit.providers._agent.unix import UnixStream
from sandboxkit.providers._error_rules import no_sandbox
from sandboxkit.providers._gvisor import GAVE_UP, PIDS, is_gvisor
from sandboxkit.providers.local import (
    _cgroup,
    _doctor,
    _gvisor,
    _layout,
    _spec,
    _state,
    _sweep,
)
from sandboxkit.providers.local._base import Base
from sandboxkit.providers.local._counters import Counters, attributed, out_of_memory
from sandboxkit.providers.local._host_user import HostUser
from sandboxkit.providers.local._launch import Launched, launch
from sandboxkit.providers.local._namespaces import start_failure
from sandboxkit.providers.local._snapshots import LocalSnapshots
from sandboxkit.providers.local._volumes import LocalVolumes
from sandboxkit.types import Command, Diagnosis, Exit, SandboxInfo, SandboxSpec

_PIDS = 256
_DISK_MB = 1024
_KILL_PATIENCE = _LATE = 5.0
_AT_ONCE = 0.001
_AGENT_PIDS = 32
"""Pids for bubblewrap and the agent's threads, in addition to the sandbox's limit."""


@dataclass(eq=False)
class LocalInstance(Instance):
    launched: Launched | None = None
    """The sandbox's processes while they run, if this provider started them."""
    detached: bool = False
    user: str | None = None
    out_of_memory: bool = False
    gvisor: Launched | None = None
    """The sandbox's processes if it has gVisor, also after their end."""
    by_command: bool = False
    """Whether gVisor ended by itself, which its programs alone can cause."""


class LocalProvider(LocalSnapshots, PausingProvider[LocalInstance]):
    """Runs the agent under bubblewrap, with namespaces, seccomp and control groups.

    `image` is a folder with a root file system, an archive of an image (OCI layout or `docker save`), or
    "docker://NAME", an image of a registry that skopeo pulls. None means the host's own programs,
    read-only, and the running Python.
    """

    name: ClassVar[str] = "local"
    on_this_machine: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(LocalInstance)
        self._state = _state.StateDir()
        self._host = HostUser()
        self._datasets: dict[str, str] = {}
        """Folders of the datasets that sandboxes have mounted."""
        self._remains: dict[str, list[str]] = {}
        """Control groups of ended sandboxes that could not be removed because the kernel still used
        them. Each creation, and the provider's `aclose`, tries to remove them again."""
        self._volumes = LocalVolumes(self._state, self._host.owner())
        self._sweeper = _sweep.LocalSweeper(self._state, self._runs_here)

    def check(self, spec: SandboxSpec) -> None:
        if sys.platform != "linux":
            raise ConfigurationError("the local provider needs Linux: use provider='docker'")
        _spec.check(spec)

    async def create(self, spec: SandboxSpec) -> str:
        self.check(spec)
        if is_gvisor(spec):
            _gvisor.find()
            # gVisor bounds the files of a folder in its memory, and not those of a root.
            spec = replace(spec, profile="strict")
        with self._base_of(spec) as base:
            return await self._create(spec, base)

    async def _create(self, spec: SandboxSpec, base: Base | None) -> str:
        spec, image = await self._on_base(spec, base)
        datasets, volumes = split_mounts(spec.mounts)
        mounts = {point: await self._stored(digest) for point, digest in datasets.items()}
        for ended, groups in tuple(self._remains.items()):
            self._clear(ended, groups)
        begun = self._state.begin()
        self._sweeper.start()
        sandbox_id = begun.sandbox_id
        groups = []
        launched: Launched | None = None
        held = ExitStack()
        try:
            folders = held.enter_context(self._volumes.held(volumes))
            limits = self._limits(spec)
            groups = _cgroup.plan(sandbox_id, limits, detached=spec.detach)
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
                self._host,
                begun,
                image=image,
                disk_mb=_disk_mb(spec),
                groups=groups,
                mounts=mounts,
                volumes=folders,
                base=base,
            )
            stream = UnixStream(connection)
            try:
                await self._attach(sandbox_id, stream, config_of(spec))
            except SandboxStartError as error:
                await launched.kill()
                if not launched.stderr_text():
                    raise
                raise _doctor.start_error(launched.stderr_text()) from error
            self._publish(spec, begun, launched, None if image is None else image.used())
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._forget(sandbox_id)
                if launched is not None:
                    await launched.kill()
                if await self._remove(sandbox_id, groups):
                    self._state.remove(begun.folder)
                begun.close()
            raise
        finally:
            held.close()
        return sandbox_id

    async def _stored(self, digest: str) -> str:
        """Return a dataset's folder, which stays in the store until this process ends."""
        folder = self._datasets.get(digest, "")
        if not os.path.isdir(folder):
            # In a thread: it may wait for a process that stores another dataset.
            folder = str(await anyio.to_thread.run_sync(DatasetStore().use, digest))
            self._datasets[digest] = folder
        return folder

    def _limits(self, spec: SandboxSpec) -> _cgroup.CgroupLimits:
        return _cgroup.CgroupLimits(
            # Files are in memory. The default adds disk_mb; a given memory_mb limits both together.
            memory_mb=spec.memory_mb or _layout.MEMORY_MB + _disk_mb(spec),
            pids=PIDS if is_gvisor(spec) else (spec.pids or _PIDS) + _AGENT_PIDS,
            cpus=spec.cpus,
        )

    def _publish(
        self,
        spec: SandboxSpec,
        begun: _state.SandboxFolder,
        launched: Launched,
        image: _state.UsedImage | None,
    ) -> None:
        sandbox_id = begun.sandbox_id
        if not launched.find_init():
            raise ProviderUnavailableError(f"sandbox {sandbox_id!r} ended while it started")
        instead: dict[int, int] = {}
        if "pids" not in _cgroup.available():
            # The sandbox's own user namespace counts only its own processes.
            instead[resource.RLIMIT_NPROC] = _PIDS + _AGENT_PIDS
        if "memory" not in _cgroup.available():
            instead[resource.RLIMIT_DATA] = _layout.MEMORY_MB << 20
        if self._host.may_limit and not is_gvisor(spec):
            launched.limit(launched.init_pid, instead)
        now = time.time()
        user, (datasets, volumes) = _spec.USERS[spec.user], split_mounts(spec.mounts)
        self._state.publish(
            begun,
            _state.SandboxRecord(
                id=sandbox_id,
                tags=dict(spec.tags),
                image=spec.image,
                user=user,
                created=now,
                expires=None if spec.lifetime is None else now + spec.lifetime,
                processes=launched.processes(),
                cgroups=launched.groups,
                maker=str(_state.OwnerProcess.me()),
                detached=spec.detach,
                datasets=sorted(set(datasets.values())),
                volumes=sorted(set(volumes.values())),
                snapshot=spec.snapshot,
                folders=_layout.kept_folders(spec),
                isolation=spec.isolation,
                used_image=image,
            ),
        )
        instance = self._instance(sandbox_id)
        instance.launched, instance.user, instance.detached = launched, user, spec.detach
        instance.gvisor = launched if is_gvisor(spec) else None
        launched.on_exit = lambda: self._ended(instance, launched)
        if spec.lifetime is not None:
            expiry = self._expire(instance, spec.lifetime, now + spec.lifetime)
            instance.timer = asyncio.create_task(expiry)

    def _ended(self, instance: LocalInstance, launched: Launched) -> None:
        """Record why a sandbox of ours ended, and remove its control groups and folder."""
        instance.out_of_memory = out_of_memory(launched.groups)
        instance.by_command = instance.gvisor is not None and _gvisor.gave_up(launched.status)
        instance.launched = None
        self._clear(instance.id, launched.groups)

    def _clear(self, sandbox_id: str, groups: list[str]) -> bool:
        """Remove an ended sandbox's groups and folder; return False while the kernel uses a group."""
        if _cgroup.try_remove(groups):
            self._remains[sandbox_id] = groups
            return False  # the folder stays, so that a later sweep tries again
        self._remains.pop(sandbox_id, None)
        _cgroup.remove_parents(groups)
        self._state.remove(self._state.folder(sandbox_id))
        return True

    async def _remove(self, sandbox_id: str, groups: list[str]) -> bool:
        with anyio.move_on_after(_KILL_PATIENCE):
            # A dead process counts as a member for a moment; no event tells when that ends.
            while not self._clear(sandbox_id, groups):  # noqa: ASYNC110
                await anyio.sleep(0.001)
            return True
        return False

    async def delete(self, sandbox_id: str) -> None:
        async with self._deletion(sandbox_id) as instance:
            meta, launched = self._state.load(sandbox_id), instance.launched
            if launched is None and meta is not None and not meta.is_here:
                await self._end_elsewhere(meta)
            await instance.disconnect()
            with anyio.CancelScope(shield=True):
                if launched is not None:
                    await launched.kill()
                    await self._remove(sandbox_id, launched.groups)
                elif meta is not None:
                    await _end(meta)
                    await self._remove(sandbox_id, meta.cgroups)

    async def _end_elsewhere(self, meta: _state.SandboxRecord) -> None:
        """End a sandbox of another pid namespace, by setting its lifetime to almost nothing.

        Raises ProviderUnavailableError if it still runs after 5 s.
        """
        with suppress(SandboxNotFoundError, SandboxTerminatedError):
            await super().renew(meta.id, _AT_ONCE)
        with anyio.move_on_after(_KILL_PATIENCE):
            while self._state.alive(meta):  # noqa: ASYNC110  # no event tells
                await anyio.sleep(0.01)
            return
        raise ProviderUnavailableError(
            f"sandbox {meta.id!r} cannot be ended here: it was started in another container; delete it there"
        )

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        living = await anyio.to_thread.run_sync(_sweep.sweep, self._state, self._runs_here)
        for meta in living:
            if tags.items() <= meta.tags.items():
                yield meta.info(self.name)

    async def get(self, sandbox_id: str) -> SandboxInfo:
        return self._living(sandbox_id).info(self.name)

    def _runs_here(self, sandbox_id: str) -> bool:
        return self._known(sandbox_id).launched is not None

    def _living(self, sandbox_id: str) -> _state.SandboxRecord:
        meta = self._state.load(sandbox_id)
        if meta is None or not self._state.alive(meta):
            raise no_sandbox(sandbox_id)
        return meta

    async def _connect(self, sandbox_id: str) -> ByteStream:
        if (meta := self._living(sandbox_id)).isolation == "gvisor":
            return UnixStream(_gvisor.connect(meta))
        try:
            place = os.open(self._state.folder(sandbox_id), os.O_PATH | os.O_CLOEXEC)
        except OSError:
            self._living(sandbox_id)
            raise
        try:
            stream = await UnixStream.connect(f"/proc/self/fd/{place}/{_state.SOCKET}")
        except OSError as error:
            raise SandboxNotFoundError(
                f"sandbox {sandbox_id!r} has ended: {os.strerror(error.errno or errno.EIO)}"
            ) from error
        finally:
            os.close(place)
        # A fork must not keep it open: the agent ends a client's commands when the connection closes.
        close_in_forks(stream.extra(SocketAttribute.raw_socket))
        return stream

    async def _why_ended(self, sandbox_id: str, reason: str) -> SandboxError:
        meta, instance = self._state.load(sandbox_id), self._known(sandbox_id)
        if not reason and instance.gvisor and not instance.deletions:
            with anyio.move_on_after(_KILL_PATIENCE):
                await instance.gvisor.exited.wait()  # later than the end of the connection
        if not reason and (
            instance.out_of_memory or (meta is not None and out_of_memory(meta.cgroups))
        ):
            return SandboxTerminatedError(
                f"sandbox {sandbox_id!r} ended: it was out of memory",
                out_of_memory=True,
            )
        if not reason and instance.by_command:
            return SandboxTerminatedError(
                f"sandbox {sandbox_id!r} ended: {GAVE_UP}",
                by_command=True,
            )
        return await super()._why_ended(sandbox_id, reason)

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        if command.user is not None:
            own = self._known(sandbox_id).user or self._living(sandbox_id).user
            if _spec.USERS.get(command.user) != own:
                raise ConfigurationError(
                    f"user={command.user!r}: this sandbox's only user is {own!r}; a local "
                    "sandbox runs everything as one, chosen with user= when it is made"
                )
        run = partial(super().exec, sandbox_id, command, output)
        return await self._counted(sandbox_id, run)

    async def run_python(
        self, sandbox_id: str, code: str, command: Command, output: Output
    ) -> Exit:
        run = partial(super().run_python, sandbox_id, code, command, output)
        return await self._counted(sandbox_id, run)

    async def _counted(self, sandbox_id: str, run: Callable[[], Awaitable[Exit]]) -> Exit:
        with self._counters(sandbox_id) as counters:
            before = counters.read()
            ended = await run()
            return attributed(ended, before, counters.read())

    @contextmanager
    def _counters(self, sandbox_id: str) -> Iterator[Counters]:
        launched = self._known(sandbox_id).launched
        if launched is not None:
            yield launched.counters
            return
        meta = self._state.load(sandbox_id)
        with closing(Counters([] if meta is None else meta.cgroups)) as counters:
            yield counters

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        await super().renew(sandbox_id, lifetime)
        expires = time.time() + lifetime
        if (instance := self._known(sandbox_id)).launched:
            await instance.set_timer(self._expire(instance, lifetime, expires))
        self._note(sandbox_id, "renewed", lambda meta: replace(meta, expires=expires))

    async def _expire(self, instance: LocalInstance, lifetime: float, expires: float) -> None:
        """End a sandbox whose agent does not, unless another process has moved the end in its record."""
        while lifetime > 0:
            await anyio.sleep(lifetime + _LATE)
            meta = self._state.load(instance.id)
            before, expires = expires, (meta and meta.expires) or expires
            lifetime = expires - before  # which does not depend on how this machine's clock is set
        await self._force(instance, "lifetime")

    async def pause(self, sandbox_id: str) -> None:
        await super().pause(sandbox_id)
        try:
            self._note(sandbox_id, "paused", lambda meta: replace(meta, paused=True))
        except ProviderUnavailableError:
            await super().resume(sandbox_id)
            raise

    async def resume(self, sandbox_id: str) -> None:
        await super().resume(sandbox_id)
        self._note(sandbox_id, "resumed", lambda meta: replace(meta, paused=False))

    def _note(
        self,
        sandbox_id: str,
        done: str,
        change: Callable[[_state.SandboxRecord], _state.SandboxRecord],
    ) -> None:
        """Change a sandbox's record. Raises ProviderUnavailableError if it cannot be written."""
        meta = self._state.load(sandbox_id)
        if meta is not None:
            try:
                self._state.update(change(meta))
            except OSError as error:
                raise ProviderUnavailableError(
                    f"sandbox {sandbox_id!r} was {done}, but this cannot be recorded in "
                    f"{self._state.path}: {error.strerror}; free space there and try again"
                ) from error

    async def _kill(self, instance: LocalInstance) -> bool:
        if launched := instance.launched:
            await launched.kill()
        return launched is not None

    def _agent_pid(self, instance: LocalInstance) -> int | None:
        return None if instance.launched is None else instance.launched.init_pid

    def _processor_seconds(self, sandbox_id: str) -> float | None:
        with self._counters(sandbox_id) as counters:
            return counters.processor_seconds()

    async def remove_unused_datasets(self, *, dry_run: bool = False) -> builtins.list[str]:
        def in_use() -> set[str]:
            living = _sweep.sweep(self._state, self._runs_here)
            return {digest for meta in living for digest in meta.datasets}

        store = DatasetStore()
        return await anyio.to_thread.run_sync(lambda: store.remove_unused(in_use, dry_run=dry_run))

    async def list_volumes(self) -> builtins.list[str]:
        return self._volumes.names()

    async def remove_volume(self, name: str) -> None:
        def in_use() -> set[str]:
            living = _sweep.sweep(self._state, self._runs_here)
            return {name for meta in living for name in meta.volumes}

        await anyio.to_thread.run_sync(self._volumes.remove, name, in_use)

    async def diagnose(self) -> Diagnosis:
        async def start(spec: SandboxSpec) -> None:
            await self.delete(await self.create(spec))

        return await _doctor.diagnose(self._host, start)

    async def aclose(self) -> None:
        for instance in tuple(self._instances.values()):
            if instance.launched is not None and not instance.detached:
                await self.delete(instance.id)
        for instance in self._instances.values():
            if instance.launched is not None:
                instance.launched.on_exit = None
                instance.launched.release()
        for sandbox_id, groups in tuple(self._remains.items()):
            await self._remove(sandbox_id, groups)
        await super().aclose()
        self._host.close()
        self._sweeper.stop()
        while self._sweeper.running:  # noqa: ASYNC110  # at exit no thread can start to join it
            await anyio.sleep(0.002)


def _disk_mb(spec: SandboxSpec) -> int:
    """Return the disk size (MB); by default at most half of `memory_mb`, because files use memory."""
    if spec.disk_mb is not None:
        return spec.disk_mb
    return _DISK_MB if spec.memory_mb is None else min(_DISK_MB, spec.memory_mb // 2)


async def _end(meta: _state.SandboxRecord) -> None:
    """Kill a sandbox that another process or another provider object started."""
    pidfds: list[int] = []
    try:
        for pid, started in meta.processes.items():
            pidfd = _state.pinned(pid, started)
            if pidfd is not None:
                pidfds.append(pidfd)
        # PID 1 first: its monitor then ends by itself, after everything inside.
        for pidfd in reversed(pidfds):
            if pidfd == pidfds[-1]:
                _state.kill(pidfd)
            with anyio.move_on_after(_KILL_PATIENCE):
                await anyio.wait_readable(pidfd)
                continue
            _state.kill(pidfd)
    finally:
        for pidfd in pidfds:
            os.close(pidfd)
    await anyio.to_thread.run_sync(_cgroup.kill_members, meta.cgroups)
