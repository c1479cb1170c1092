"""The docker provider: creates, finds and removes containers; the agent does everything else."""

import builtins
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from sandboxkit.providers._agent import requests
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.failures import ConnectionEndedError, SilentError
from sandboxkit.providers._agent.instance import Instance
from sandboxkit.providers._agent.launch import config_of
from sandboxkit.providers._agent.pausing import PausingProvider
from sandboxkit.providers._error_rules import no_sandbox
from sandboxkit.providers._gvisor import GAVE_UP
from sandboxkit.providers.docker import _answers, _container
from sandboxkit.providers.docker._agent_volume import AgentVolume, FilledVolume, exec_agent
from sandboxkit.providers.docker._container import AGENT_SOCKET, ID_PATTERN, agent_path
from sandboxkit.providers.docker._daemon import Daemon
from sandboxkit.providers.docker._diagnosis import diagnosis
from sandboxkit.providers.docker._direct import DirectConnections, DirectRoute
from sandboxkit.providers.docker._endpoint import Endpoint
from sandboxkit.providers.docker._errors import is_status
from sandboxkit.providers.docker._gvisor import OtherKernelError, Runtimes
from sandboxkit.providers.docker._images import Images, PullProgress
from sandboxkit.providers.docker._loopback import HOSTS, HOSTS_PATH, Hosts, hosts_from
from sandboxkit.providers.docker._memory_folders import unpack
from sandboxkit.providers.docker._mounts import MISSING, DockerMounts
from sandboxkit.providers.docker._removals import Removals
from sandboxkit.providers.docker._snapshots import DockerSnapshots
from sandboxkit.providers.docker._stream import AttachStream
from sandboxkit.types import Diagnosis, SandboxInfo, SandboxSpec, SnapshotKind, StreamName

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


@dataclass(eq=False)
class DockerInstance(Instance):
    owned: bool = False
    """Whether the agent ends the sandbox when its owner disconnects."""
    way: DirectRoute = field(default_factory=DirectRoute)
    gvisor: bool = False
    """Whether this provider created it with gVisor."""


class DockerProvider(DockerSnapshots, PausingProvider[DockerInstance]):
    """Runs sandboxes as containers on the daemon that DOCKER_HOST or the docker context names.

    The image defaults to SANDBOXKIT_DOCKER_IMAGE, then python:3.11-slim.
    """

    name: ClassVar[str] = "docker"
    on_this_machine: ClassVar[bool] = True
    _streams_fall_silent: ClassVar[bool] = False

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
        super().__init__(DockerInstance)
        self._daemon = Daemon(Endpoint.resolve(base_url), timeout=timeout)
        self._images = Images(self._daemon, on_pull)
        self._agent = AgentVolume(self._daemon)
        self._mounts = DockerMounts(self._daemon)
        self._by_daemon: set[str] = set()
        """References of images whose sandboxes need the daemon to write /etc/hosts."""
        self._runtime = runtime
        self._runtimes = Runtimes()
        self._network = docker_network
        self._capabilities = _container.check_capabilities(capabilities)
        self._timeout = timeout
        self._starts: anyio.CapacityLimiter | None = None
        self._ways = DirectConnections(self._daemon, AGENT_SOCKET)
        self._removals = Removals(self.delete)

    def check(self, spec: SandboxSpec) -> None:
        _container.check(self._named(spec))

    def check_snapshot(self, spec: SandboxSpec, kind: SnapshotKind) -> None:
        super().check_snapshot(self._named(spec), kind)

    def _named(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the spec as the runtime's name has it; `create` asks the daemon."""
        named = (self._runtime or "").startswith("runsc")
        return replace(spec, isolation="gvisor") if named else spec

    async def create(self, spec: SandboxSpec) -> str:
        sandbox_id = await self._create(spec)
        if spec.snapshot is not None and spec.profile == "strict":
            try:
                await self._unpack(sandbox_id, spec)
            except BaseException:
                await self.delete(sandbox_id)
                raise
        return sandbox_id

    async def _unpack(self, sandbox_id: str, spec: SandboxSpec) -> None:
        said = bytearray()

        async def hear(stream: StreamName, data: bytes) -> None:
            said.extend(data[: 1000 - len(said)])

        if (await self.exec(sandbox_id, unpack(sandbox_id, spec), hear)).status:
            raise SandboxStartError(
                f"the files of the snapshot could not be unpacked: {said.decode(errors='replace').strip()}; "
                "give at least the disk_mb and memory_mb of the sandbox that it was taken of"
            )

    async def _create(self, spec: SandboxSpec) -> str:
        self.check(spec)
        self._daemon.reopen()
        self._removals.retry()
        info = await self._daemon.info()
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
        except MISSING:
            await self._mounts.ensure(image.reference, spec.mounts, again=True)
        return await self._created(spec, image, self._starts)

    async def _image(self, spec: SandboxSpec, reference: str) -> _container.ContainerImage:
        snapshot = spec.snapshot is not None
        return await (self._snapshot_image(spec) if snapshot else self._images.ensure(reference))

    async def _created(
        self, spec: SandboxSpec, image: _container.ContainerImage, starts: anyio.CapacityLimiter
    ) -> str:
        async with starts:
            limit = _START_ANSWERS * self._timeout
            with anyio.move_on_after(limit):
                with suppress(OtherKernelError):
                    return await self._started(spec, image)
                return await self._started(spec, image)  # its runtime's kernel is known now
        raise ProviderUnavailableError(
            f"Docker at {self._daemon.endpoint.url} did not start a sandbox within {limit:g} s: it is "
            "overloaded, or hangs; see its log, or give a larger timeout="
        )

    async def _started(self, spec: SandboxSpec, image: _container.ContainerImage) -> str:
        hosts = Hosts.DAEMON if image.reference in self._by_daemon else hosts_from(spec, image)
        volume = await self._agent.ensure(image.reference)
        try:
            return await self._start(spec, image, volume, hosts)
        except _AgentMissingError:
            volume = await self._agent.ensure(image.reference, refill=True)
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
    ) -> str:
        info = await self._daemon.info()
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
            mounts={HOSTS_PATH: volume.hosts} if hosts is Hosts.MOUNT else {},
            volumes=self._mounts.of(spec.mounts),
        )
        instance = self._instance(name)
        instance.gvisor = spec.isolation == "gvisor"
        stream: ByteStream | None = None
        answered = False
        try:
            instance.way.container_id = await self._daemon.call(
                lambda api: str(api.create_container_from_config(body, name)["Id"]),
                what=f"create a sandbox from image {image.reference!r}",
                sandbox_id=name,
                shield=True,
            )
            answered = True
            await self._mounts.verify(spec.mounts)
            # Attach before the start: none of the agent's first output is lost, and if this client
            # is killed from here on, the sandbox ends with it.
            stream = await self._daemon.stream(
                f"/containers/{name}/attach?stream=1&stdin=1&stdout=1&stderr=1"
            )
            try:
                await self._daemon.call(
                    lambda api: api.start(name),
                    what="start a sandbox",
                    sandbox_id=name,
                    shield=True,
                )
            except SandboxStartError as error:
                if agent_path(name) in str(error) and "no such file" in str(error):
                    raise _AgentMissingError(str(error)) from error
                raise
            owner = await self._attach(name, stream, config_of(spec))
            version = partial(self.read_file, name, "/proc/version", max_bytes=4096)
            await self._runtimes.prove(spec, runtime, info, version)
            if not spec.detach:
                instance.owned = True
            with suppress(SandboxError):  # the stream through the daemon still works
                await self._shorten(name)
            if hosts is Hosts.AGENT:
                await self._write_hosts(name)
            owner.settle()
        except BaseException as error:
            answered = answered or isinstance(error.__cause__, APIError)
            mounted = hosts is Hosts.MOUNT and isinstance(error, SandboxError)
            with anyio.CancelScope(shield=True):
                if stream is not None:
                    await anyio.aclose_forcefully(stream)
                await self._removals.undo(name, answered=answered, seconds=self._timeout / 2)
            if mounted and volume.hosts in str(error):
                raise _HostsMissingError(str(error)) from error
            raise
        return name

    async def _write_hosts(self, sandbox_id: str) -> None:
        try:
            await self.write_file(sandbox_id, HOSTS_PATH, HOSTS, mode=0o644)
        except SandboxFileError as error:
            raise _HostsMissingError(f"sandbox {sandbox_id!r} did not start: {error}") from error

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        labels = [f"{_container.MARKER}=1"]
        labels += [f"{key}={value}" for key, value in tags.items()]
        found = await self._daemon.call(
            lambda api: _answers.listed(api.containers(all=True, filters={"label": labels})),
            what="list sandboxes",
        )
        for info in found:
            # The daemon's filter also matches labels of the image.
            if info is not None and all(info.tags.get(key) == tags[key] for key in tags):
                yield self._stated(info)

    async def get(self, sandbox_id: str) -> SandboxInfo:
        if not ID_PATTERN.fullmatch(sandbox_id):
            raise no_sandbox(sandbox_id)
        info = await self._daemon.call(
            lambda api: _answers.described(sandbox_id, api.inspect_container(sandbox_id)),
            what="describe a sandbox",
            sandbox_id=sandbox_id,
        )
        if info is None:
            raise no_sandbox(sandbox_id)
        return self._stated(info)

    async def delete(self, sandbox_id: str) -> None:
        if not ID_PATTERN.fullmatch(sandbox_id):
            return
        with anyio.CancelScope(shield=True):
            # Even if the daemon hangs, a sandbox that is not detached ends with its lifeline.
            async with self._deletion(sandbox_id) as instance:
                if not await self._left(sandbox_id, instance):
                    await self._until_removed(sandbox_id)

    async def _left(self, sandbox_id: str, instance: DockerInstance) -> bool:
        """Let the agent end the sandbox, which spares the runtime a kill; True once it is removed."""
        owner = instance.lifeline if instance.owned else None
        if owner is None or not await owner.leave():
            return False
        try:
            return await self._daemon.call(
                lambda api: _answers.is_gone(
                    api.wait(sandbox_id, timeout=_LEAVING, condition="removed")
                ),
                what="remove a sandbox",
                sandbox_id=sandbox_id,
            )
        except SandboxError as error:
            return isinstance(error, SandboxNotFoundError)

    async def _until_removed(self, sandbox_id: str) -> None:
        deadline = time.monotonic() + self._timeout
        while not await self._removed(sandbox_id):
            if time.monotonic() > deadline:
                raise ProviderUnavailableError(
                    f"Docker does not finish removing {sandbox_id!r}; see the daemon's log"
                )
            await anyio.sleep(_POLL)

    async def _removed(self, sandbox_id: str) -> bool:
        """Request the removal; True once it is done. The agent's exit starts a removal, too."""

        def remove(api: Any) -> bool:
            api.remove_container(sandbox_id, v=True, force=True)
            return True

        def busy(error: BaseException) -> bool:
            # 500: the file system is still busy; retry.
            return is_status(error, 404, 409, 500)

        try:
            return await self._daemon.call(
                remove, what="remove a sandbox", sandbox_id=sandbox_id, allow=busy
            )
        except Exception as error:
            if busy(error):
                return is_status(error, 404)
            raise

    async def _connect(self, sandbox_id: str) -> ByteStream:
        if not ID_PATTERN.fullmatch(sandbox_id):
            raise no_sandbox(sandbox_id)
        direct = await self._ways.open(sandbox_id, self._known(sandbox_id).way)
        if direct is not None:
            return direct
        try:
            started = await self._daemon.call(
                lambda api: exec_agent(api, sandbox_id),
                what="connect to a sandbox",
                sandbox_id=sandbox_id,
                allow=lambda error: is_status(error, 409),
            )
        except APIError as error:
            if "is paused" in str(error):
                raise ProviderUnavailableError(
                    f"sandbox {sandbox_id!r} is paused: docker unpause {sandbox_id}"
                ) from error
            raise no_sandbox(sandbox_id) from error  # 409: it is not running
        return await self._daemon.stream(f"/exec/{started}/start", {"Detach": False, "Tty": False})

    async def _shorten(self, sandbox_id: str) -> None:
        """Send requests directly to the agent from now on, if that is possible.

        The direct stream also lets the agent notice at once when this process dies.
        """
        direct = await self._ways.open(sandbox_id, self._known(sandbox_id).way)
        if direct is not None:
            await self._prefer(sandbox_id, direct)

    async def _kill(self, instance: DockerInstance) -> bool:
        await self._removed(instance.id)
        return True

    def _agent_pid(self, instance: DockerInstance) -> int | None:
        return self._ways.pid(instance.way)

    def _whole_processor_seconds(self, sandbox_id: str) -> float | None:
        return self._ways.processor_seconds(self._known(sandbox_id).way)

    def _grace(self, stream: ByteStream) -> float:
        # The daemon, or the network to it, may break a stream; a direct stream cannot break.
        return _GRACE if isinstance(stream, AttachStream) else 0.0

    async def _prefer(self, sandbox_id: str, stream: ByteStream) -> None:
        """Send later requests over this faster stream; the owner's stream remains the lifeline.

        A stream that the agent refuses is closed, and nothing changes.
        """
        instance = self._known(sandbox_id)
        try:
            client = await AgentClient.start(
                stream,
                requests.hello(None, beside_owner=True),
                patience=_PREFER_PATIENCE,
                starved=lambda: self._starved(instance),
                force=lambda reason: self._force(instance, reason),
            )
        except (ConnectionEndedError, SilentError):
            return
        if instance.lifeline is not None:
            instance.client = client
        else:  # it was deleted meanwhile
            await client.aclose()

    async def _why_ended(self, sandbox_id: str, reason: str) -> SandboxError:
        if self._known(sandbox_id).deletions:
            reason = "it was deleted"  # the agent knows only that its owner disconnected
        if reason:
            return await super()._why_ended(sandbox_id, reason)
        try:
            with anyio.fail_after(5):
                reason = await self._daemon.call(
                    lambda api: _answers.last_words(api, sandbox_id),
                    what="report how a sandbox ended",
                )
        except (SandboxError, TimeoutError):
            return await super()._why_ended(sandbox_id, reason)
        # Commands cannot signal the agent. gVisor itself ends when its programs use up its threads. A
        # signal from outside, as of the machine's OOM killer, has another status.
        gave_up = self._known(sandbox_id).gvisor and _answers.ended_itself(reason)
        return SandboxTerminatedError(
            f"sandbox {sandbox_id!r} ended: {GAVE_UP if gave_up else reason}",
            out_of_memory=reason == _answers.OUT_OF_MEMORY,
            by_command=gave_up,
        )

    async def remove_unused_datasets(self, *, dry_run: bool = False) -> builtins.list[str]:
        return await self._mounts.datasets.remove_unused(dry_run=dry_run)

    async def list_volumes(self) -> builtins.list[str]:
        return await self._mounts.volumes.names()

    async def remove_volume(self, name: str) -> None:
        await self._mounts.volumes.remove(name)

    async def diagnose(self) -> Diagnosis:
        async def start(spec: SandboxSpec) -> None:
            await self.delete(await self.create(spec))

        return await diagnosis(
            self._daemon, self._runtime, _default_image(), self._images.present, start
        )

    async def aclose(self) -> None:
        await super().aclose()
        try:
            await self._removals.finish()
        finally:
            await self._daemon.aclose()


class _AgentMissingError(SandboxStartError):
    """The agent's volume is empty and must be filled again."""


class _HostsMissingError(_AgentMissingError):
    """The agent's volume is empty, or only the daemon can write /etc/hosts."""


def _default_image() -> str:
    return os.environ.get("SANDBOXKIT_DOCKER_IMAGE") or _DEFAULT_IMAGE
