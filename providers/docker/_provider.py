"""The docker provider: creates, finds and removes containers; the agent does everything else."""

import builtins
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import anyio
from anyio.abc import ByteStream
from docker.errors import APIError  # type: ignore[import-untyped]  # ships no types

from sandboxkit.errors import (
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
    SandboxFileError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Box, FirstCommand, no_sandbox
from sandboxkit.providers import _rules
from sandboxkit.providers._agent import requests
from sandboxkit.providers._agent.box import AgentBox, AgentProvider
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.failures import ConnectionEndedError, SilentError
from sandboxkit.providers._agent.launch import config_of
from sandboxkit.providers._gvisor import GAVE_UP
from sandboxkit.providers.docker import _answers, _container
from sandboxkit.providers.docker._agent_volume import AgentVolume, FilledVolume, exec_agent
from sandboxkit.providers.docker._container import AGENT_SOCKET, ID_PATTERN, agent_path
from sandboxkit.providers.docker._daemon import Daemon
from sandboxkit.providers.docker._diagnosis import diagnosis
from sandboxkit.providers.docker._direct import DirectConnections, DirectRoute
from sandboxkit.providers.docker._dockerfiles import built
from sandboxkit.providers.docker._endpoint import Endpoint
from sandboxkit.providers.docker._errors import is_status
from sandboxkit.providers.docker._gvisor import OtherKernelError, Runtimes
from sandboxkit.providers.docker._images import Images, PullProgress
from sandboxkit.providers.docker._loopback import HOSTS, HOSTS_PATH, Hosts, hosts_from
from sandboxkit.providers.docker._memory_folders import unpack
from sandboxkit.providers.docker._mounts import DockerMounts, MountMissingError
from sandboxkit.providers.docker._removals import Removals
from sandboxkit.providers.docker._snapshots import DockerSnapshots
from sandboxkit.providers.docker._stream import AttachStream
from sandboxkit.types import (
    Diagnosis,
    Dockerfile,
    SandboxInfo,
    SandboxSpec,
    SnapshotInfo,
    SnapshotKind,
    SnapshotRequest,
    StreamName,
)

_DEFAULT_IMAGE = "python:3.11-slim"
_POLL = 0.02
_GRACE = 30.0
"""Seconds in which a broken stream through the daemon can be replaced. A sandbox may outlive its owner
by this time, unless the agent notices the owner's death by itself."""
_LEAVING = 1.0
"""Seconds to wait for an agent that lost its owner to end its sandbox."""
_PREFER_PATIENCE = 8.0
"""Seconds that an agent may take to answer on a faster stream."""
_START_ANSWERS = 2.5
"""Time limit of a start in multiples of `timeout`; a start waits for four answers of the daemon."""


class DockerBox(AgentBox):
    """One container."""

    streams_fall_silent: ClassVar[bool] = False

    def __init__(self, provider: "DockerProvider", sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self.backend = provider
        self.owned = False
        """Whether the agent ends the sandbox when its owner disconnects."""
        self.way = DirectRoute()
        self.gvisor = False
        """Whether this provider created it with gVisor."""

    async def unpack(self, spec: SandboxSpec) -> None:
        """Unpack the files of a strict snapshot. Raises SandboxStartError."""
        said = bytearray()

        async def hear(stream: StreamName, data: bytes) -> None:
            said.extend(data[: 1000 - len(said)])

        if (await self.exec(unpack(self.id, spec), hear)).status:
            raise SandboxStartError(
                f"the files of the snapshot could not be unpacked: {said.decode(errors='replace').strip()}; "
                "give at least the disk_mb and memory_mb of the sandbox that it was taken of"
            )

    async def write_hosts(self) -> None:
        """Have the agent write /etc/hosts."""
        try:
            await self.write_file(HOSTS_PATH, HOSTS, mode=0o644)
        except SandboxFileError as error:
            raise _HostsMissingError(f"sandbox {self.id!r} did not start: {error}") from error

    async def info(self) -> SandboxInfo:
        if not ID_PATTERN.fullmatch(self.id):
            raise no_sandbox(self.id)
        info = await self.backend.daemon.call(
            lambda api: _answers.described(self.id, api.inspect_container(self.id)),
            what="describe a sandbox",
            sandbox_id=self.id,
        )
        if info is None:
            raise no_sandbox(self.id)
        return self.backend.stated(info)

    async def delete(self) -> None:
        if not ID_PATTERN.fullmatch(self.id):
            return
        with anyio.CancelScope(shield=True):
            # Even if the daemon hangs, a sandbox that is not detached ends with its lifeline.
            async with self.deletion():
                if not await self._left():
                    await self._until_removed()

    async def _left(self) -> bool:
        """Let the agent end the sandbox, which spares the runtime a kill; True once it is removed."""
        owner = self.lifeline if self.owned else None
        if owner is None or not await owner.leave():
            return False
        try:
            return await self.backend.daemon.call(
                lambda api: _answers.is_gone(
                    api.wait(self.id, timeout=_LEAVING, condition="removed")
                ),
                what="remove a sandbox",
                sandbox_id=self.id,
            )
        except SandboxError as error:
            return isinstance(error, SandboxNotFoundError)

    async def _until_removed(self) -> None:
        deadline = time.monotonic() + self.backend.timeout
        while not await self._removed():
            if time.monotonic() > deadline:
                raise ProviderUnavailableError(
                    f"Docker does not finish removing {self.id!r}; see the daemon's log"
                )
            await anyio.sleep(_POLL)

    async def _removed(self) -> bool:
        """Request the removal; True once it is done. The agent's exit starts a removal, too."""

        def remove(api: Any) -> bool:
            api.remove_container(self.id, v=True, force=True)
            return True

        def busy(error: BaseException) -> bool:
            # 500: the file system is still busy; retry.
            return is_status(error, 404, 409, 500)

        try:
            return await self.backend.daemon.call(
                remove, what="remove a sandbox", sandbox_id=self.id, allow=busy
            )
        except Exception as error:
            if busy(error):
                return is_status(error, 404)
            raise

    async def _connect(self) -> ByteStream:
        if not ID_PATTERN.fullmatch(self.id):
            raise no_sandbox(self.id)
        direct = await self.backend.ways.open(self.id, self.way)
        if direct is not None:
            return direct
        try:
            started = await self.backend.daemon.call(
                lambda api: exec_agent(api, self.id),
                what="connect to a sandbox",
                sandbox_id=self.id,
                allow=lambda error: is_status(error, 409),
            )
        except APIError as error:
            if "is paused" in str(error):
                raise ProviderUnavailableError(
                    f"sandbox {self.id!r} is paused: docker unpause {self.id}"
                ) from error
            raise no_sandbox(self.id) from error  # 409: it is not running
        return await self.backend.daemon.stream(
            f"/exec/{started}/start", {"Detach": False, "Tty": False}
        )

    async def shorten(self) -> None:
        """Send requests directly to the agent from now on, if that is possible.

        The direct stream also lets the agent notice at once when this process dies.
        """
        direct = await self.backend.ways.open(self.id, self.way)
        if direct is not None:
            await self._prefer(direct)

    async def take_snapshot(self, request: SnapshotRequest) -> SnapshotInfo:
        return await self.backend.take_snapshot_of(self.id, request)

    async def _kill(self) -> bool:
        await self._removed()
        return True

    def _agent_pid(self) -> int | None:
        return self.backend.ways.pid(self.way)

    def _whole_processor_seconds(self) -> float | None:
        return self.backend.ways.processor_seconds(self.way)

    def _grace(self, stream: ByteStream) -> float:
        # The daemon, or the network to it, may break a stream; a direct stream cannot break.
        return _GRACE if isinstance(stream, AttachStream) else 0.0

    async def _prefer(self, stream: ByteStream) -> None:
        """Send later requests over this faster stream; the owner's stream remains the lifeline.

        A stream that the agent refuses is closed, and nothing changes.
        """
        try:
            client = await AgentClient.start(
                stream,
                requests.hello(None, beside_owner=True),
                patience=_PREFER_PATIENCE,
                starved=self._starved,
                force=self._force,
            )
        except (ConnectionEndedError, SilentError):
            return
        if self.lifeline is not None:
            self.client = client
        else:  # it was deleted meanwhile
            await client.aclose()

    async def _why_ended(self, reason: str) -> SandboxError:
        if self.deletions:
            reason = "it was deleted"  # the agent knows only that its owner disconnected
        if reason:
            return await super()._why_ended(reason)
        try:
            with anyio.fail_after(5):
                reason = await self.backend.daemon.call(
                    lambda api: _answers.last_words(api, self.id),
                    what="report how a sandbox ended",
                )
        except (SandboxError, TimeoutError):
            return await super()._why_ended(reason)
        # Commands cannot signal the agent. gVisor itself ends when its programs use up its threads. A
        # signal from outside, as of the machine's OOM killer, has another status.
        gave_up = self.gvisor and _answers.ended_itself(reason)
        return SandboxTerminatedError(
            f"sandbox {self.id!r} ended: {GAVE_UP if gave_up else reason}",
            out_of_memory=reason == _answers.OUT_OF_MEMORY,
            by_command=gave_up,
        )


class DockerProvider(DockerSnapshots, AgentProvider[DockerBox]):
    """Runs sandboxes as containers on the daemon that DOCKER_HOST or the docker context names.

    The image defaults to SANDBOXKIT_DOCKER_IMAGE, then python:3.11-slim.
    """

    name: ClassVar[str] = "docker"
    on_this_machine: ClassVar[bool] = True
    box_type: ClassVar[type[Box]] = DockerBox

    def __init__(
        self,
        *,
        base_url: str | None = None,
        runtime: str | None = None,
        docker_network: str = "bridge",
        capabilities: Iterable[str] = (),
        timeout: float = 60.0,
        on_pull: Callable[[PullProgress], None] | None = None,
    ) -> None:
        """`base_url` is the daemon's address, by default that of DOCKER_HOST or the docker context.

        `runtime` is one of the daemon's, such as "crun"; isolation="gvisor" finds gVisor's.
        network="internet" joins `docker_network`. `capabilities` are for commands that run as root; installing packages
        needs ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"). `timeout` limits (s) each
        answer of the daemon; a creation fails after at most six times that, besides its wait in
        the queue and the image's pull. `on_pull` is called in a worker thread. Raises
        ConfigurationError for an unusable address or capability."""
        super().__init__()
        self.daemon = Daemon(Endpoint.resolve(base_url), timeout=timeout)
        self._images = Images(self.daemon, on_pull)
        self.agent = AgentVolume(self.daemon)
        self._mounts = DockerMounts(self.daemon)
        self._by_daemon: set[str] = set()
        """References of images whose sandboxes need the daemon to write /etc/hosts."""
        self._runtime = runtime
        self._runtimes = Runtimes()
        self._network = docker_network
        self._capabilities = _container.check_capabilities(capabilities)
        self.timeout = timeout
        self._starts: anyio.CapacityLimiter | None = None
        self.ways = DirectConnections(self.daemon, AGENT_SOCKET)
        self._removals = Removals(lambda name: self.box(name).delete())

    def check(self, spec: SandboxSpec) -> None:
        _container.check(self._named(spec))

    def check_snapshot(self, spec: SandboxSpec, kind: SnapshotKind) -> None:
        super().check_snapshot(self._named(spec), kind)

    def _named(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the spec as the runtime's name has it; `create` asks the daemon."""
        named = (self._runtime or "").startswith("runsc")
        return replace(spec, isolation="gvisor") if named else spec

    def check_pause(self) -> None:
        pass

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> DockerBox:
        box = await self._create(spec)
        if spec.snapshot is not None and spec.profile == "strict":
            try:
                await box.unpack(spec)
            except BaseException:
                await box.delete()
                raise
        return box

    async def _create(self, spec: SandboxSpec) -> DockerBox:
        self.check(spec)
        self.daemon.reopen()
        self._removals.retry()
        info = await self.daemon.info()
        if info.podman:
            _rules.check(spec, _container.PODMAN, provider="docker")
        if not info.limits:
            _rules.check(spec, _container.WITHOUT_LIMITS, provider="docker")
        spec, _ = self._runtimes.settle(spec, self._runtime, info)
        reference = spec.image or _default_image()
        if self._starts is None:
            # More concurrent starts do not raise the throughput; each only takes longer.
            self._starts = anyio.CapacityLimiter(4 * info.cpus)
        image = await self._image(spec, reference)
        try:
            await self._mounts.ensure(image.reference, spec.mounts)
            return await self._created(spec, image, self._starts)
        except ImageNotFoundError:  # removed since it was looked up
            self._images.forget(reference)
            image = await self._image(spec, reference)
            await self._mounts.ensure(image.reference, spec.mounts)
        except MountMissingError:
            await self._mounts.ensure(image.reference, spec.mounts, again=True)
        return await self._created(spec, image, self._starts)

    async def _image(self, spec: SandboxSpec, reference: str) -> _container.ContainerImage:
        snapshot = spec.snapshot is not None
        return await (self._snapshot_image(spec) if snapshot else self._images.ensure(reference))

    async def _created(
        self, spec: SandboxSpec, image: _container.ContainerImage, starts: anyio.CapacityLimiter
    ) -> DockerBox:
        async with starts:
            limit = _START_ANSWERS * self.timeout
            with anyio.move_on_after(limit):
                with suppress(OtherKernelError):
                    return await self._started(spec, image)
                return await self._started(spec, image)  # its runtime's kernel is known now
        raise ProviderUnavailableError(
            f"Docker at {self.daemon.endpoint.url} did not start a sandbox within {limit:g} s: it is "
            "overloaded, or hangs; see its log, or give a larger timeout="
        )

    async def _started(self, spec: SandboxSpec, image: _container.ContainerImage) -> DockerBox:
        hosts = hosts_from(spec, image, podman=(await self.daemon.info()).podman)
        hosts = Hosts.DAEMON if image.reference in self._by_daemon else hosts
        volume = await self.agent.ensure(image.reference)
        try:
            return await self._start(spec, image, volume, hosts)
        except _AgentMissingError:
            volume = await self.agent.ensure(image.reference, refill=True)
        try:
            return await self._start(spec, image, volume, hosts)
        except _HostsMissingError:
            # The daemon cannot mount a file of the volume, or the agent cannot write to the image's /etc.
            self._by_daemon.add(image.reference)
            return await self._start(spec, image, volume, Hosts.DAEMON)

    async def _start(
        self,
        spec: SandboxSpec,
        image: _container.ContainerImage,
        volume: FilledVolume,
        hosts: Hosts,
    ) -> DockerBox:
        info = await self.daemon.info()
        spec, runtime = self._runtimes.settle(spec, self._runtime, info)
        # Chosen here, so that the container can be removed even if the answer to its creation is lost.
        name = f"sandboxkit-{secrets.token_hex(8)}"
        body = _container.create_body(
            spec,
            image,
            name=name,
            own_user=_container.own_user(info.security),
            agent_volume=volume.name,
            runtime=runtime,
            network=self._network,
            capabilities=self._capabilities,
            endpoint=hosts is Hosts.DAEMON,
            podman=info.podman,
            mounts={HOSTS_PATH: volume.hosts} if hosts is Hosts.MOUNT else {},
            volumes=self._mounts.of(spec.mounts),
        )
        box = self.box(name)
        box.gvisor = spec.isolation == "gvisor"
        stream: ByteStream | None = None
        answered = False
        try:
            box.way.container_id = await self.daemon.call(
                lambda api: str(api.create_container_from_config(body, name)["Id"]),
                what=f"create a sandbox from image {image.reference!r}",
                sandbox_id=name,
                shield=True,
            )
            answered = True
            await self._mounts.verify(spec.mounts)
            # Attach before the start: none of the agent's first output is lost, and if this client
            # is killed from here on, the sandbox ends with it.
            stream = await self.daemon.stream(
                f"/containers/{name}/attach?stream=1&stdin=1&stdout=1&stderr=1"
            )
            try:
                await self.daemon.call(
                    lambda api: api.start(name),
                    what="start a sandbox",
                    sandbox_id=name,
                    shield=True,
                )
            except SandboxStartError as error:
                if agent_path(name) in str(error) and "no such file" in str(error):
                    raise _AgentMissingError(str(error)) from error
                raise
            owner = await box.attach(stream, config_of(spec))
            version = partial(box.read_file, "/proc/version", max_bytes=4096)
            await self._runtimes.prove(spec, runtime, info, version)
            if not spec.detach:
                box.owned = True
            with suppress(SandboxError):  # the stream through the daemon still works
                await box.shorten()
            if hosts is Hosts.AGENT:
                await box.write_hosts()
            owner.settle()
        except BaseException as error:
            answered = answered or isinstance(error.__cause__, APIError)
            mounted = hosts is Hosts.MOUNT and isinstance(error, SandboxError)
            with anyio.CancelScope(shield=True):
                if stream is not None:
                    await anyio.aclose_forcefully(stream)
                await self._removals.undo(name, answered=answered, seconds=self.timeout / 2)
            if mounted and volume.hosts in str(error):
                raise _HostsMissingError(str(error)) from error
            raise
        return box

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        labels = [f"{_container.MARKER}=1"]
        labels += [f"{key}={value}" for key, value in tags.items()]
        found = await self.daemon.call(
            lambda api: _answers.listed(api.containers(all=True, filters={"label": labels})),
            what="list sandboxes",
        )
        for info in found:
            # The daemon's filter also matches labels of the image.
            if info is not None and all(info.tags.get(key) == tags[key] for key in tags):
                yield self.stated(info)

    async def remove_unused_datasets(self, *, dry_run: bool = False) -> builtins.list[str]:
        return await self._mounts.remove_unused_datasets(dry_run=dry_run)

    async def list_volumes(self) -> builtins.list[str]:
        return await self._mounts.volumes()

    async def remove_volume(self, name: str) -> None:
        await self._mounts.remove_volume(name)

    def built_image(
        self, file: Dockerfile, network: str, tell: Callable[[str], None]
    ) -> AbstractAsyncContextManager[str]:
        return built(self.daemon, file, network, tell)

    async def diagnose(self) -> Diagnosis:
        async def start(spec: SandboxSpec) -> None:
            await (await self.create(spec)).delete()

        return await diagnosis(
            self.daemon, self._runtime, _default_image(), self._images.present, start
        )

    async def aclose(self) -> None:
        await super().aclose()
        try:
            await self._removals.finish()
        finally:
            await self.daemon.aclose()


class _AgentMissingError(SandboxStartError):
    """The agent's volume is empty and must be filled again."""


class _HostsMissingError(_AgentMissingError):
    """The agent's volume is empty, or only the daemon can write /etc/hosts."""


def _default_image() -> str:
    return os.environ.get("SANDBOXKIT_DOCKER_IMAGE") or _DEFAULT_IMAGE
