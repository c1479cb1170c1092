"""The docker provider: containers made, found and removed; all else goes through the agent."""

import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
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
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.launch import config_of
from sandboxkit.providers._agent.provider import AgentProvider
from sandboxkit.providers.docker import _container
from sandboxkit.providers.docker._agent_volume import AgentVolume, Volume
from sandboxkit.providers.docker._container import AGENT_PATH, AGENT_SOCKET, ID_PATTERN
from sandboxkit.providers.docker._daemon import Daemon
from sandboxkit.providers.docker._direct import ShortWays
from sandboxkit.providers.docker._endpoint import Endpoint
from sandboxkit.providers.docker._errors import is_status
from sandboxkit.providers.docker._images import Images, PullProgress
from sandboxkit.providers.docker._loopback import HOSTS, HOSTS_PATH, Hosts, hosts_from
from sandboxkit.providers.docker._removals import Removals
from sandboxkit.types import Diagnosis, SandboxInfo, SandboxSpec

__all__ = ["DockerProvider"]

_DEFAULT_IMAGE = "python:3.11-slim"
_POLL = 0.02
_GRACE = 10.0
_LEAVING = 1.0
"""Seconds in which an agent that lost its owner ends its sandbox, or something keeps it."""
_START_ANSWERS = 2.5
"""How many times the daemon's time for one answer a start may take: it is four answers."""


class DockerProvider(AgentProvider):
    """Containers on the daemon that DOCKER_HOST or the docker context names.

    The image defaults to SANDBOXKIT_DOCKER_IMAGE, then python:3.11-slim.
    """

    name: ClassVar[str] = "docker"
    on_this_machine: ClassVar[bool] = True

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
        """`runtime` is one that the daemon knows, such as "runsc"; `docker_network` is what
        network="internet" joins; `capabilities`, such as ("CHOWN", "DAC_OVERRIDE", "FOWNER",
        "SETGID", "SETUID") for installing packages, are for commands that run as root;
        `timeout` bounds each answer of the daemon, in seconds, and six times it a creation that
        fails once it is its turn and the image is there; `on_pull` is called in a worker
        thread."""
        super().__init__()
        self._daemon = Daemon(Endpoint.resolve(base_url), timeout=timeout)
        self._images = Images(self._daemon, on_pull)
        self._agent = AgentVolume(self._daemon)
        self._by_daemon: set[str] = set()
        """Images for whose sandboxes only the daemon makes an /etc/hosts."""
        self._runtime = runtime
        self._network = docker_network
        self._capabilities = _container.check_capabilities(capabilities)
        self._timeout = timeout
        self._starts: anyio.CapacityLimiter | None = None
        self._deleting: set[str] = set()
        self._owned: dict[str, ByteStream] = {}
        """Streams with which the agents of sandboxes end that are not detached."""
        self._ways = ShortWays(self._daemon, AGENT_SOCKET)
        self._removals = Removals(self.delete)

    def check(self, spec: SandboxSpec) -> None:
        _container.check(spec)

    async def create(self, spec: SandboxSpec) -> str:
        self.check(spec)
        self._daemon.reopen()
        self._removals.retry()
        reference = spec.image or _default_image()
        if self._starts is None:
            # More at a time does not start more a second, it only makes each wait longer.
            self._starts = anyio.CapacityLimiter(4 * (await self._daemon.info()).cpus)
        image = await self._images.ensure(reference)
        try:
            return await self._created(spec, image, self._starts)
        except ImageNotFoundError:  # it was removed since
            self._images.forget(reference)
        return await self._created(spec, await self._images.ensure(reference), self._starts)

    async def _created(
        self, spec: SandboxSpec, image: _container.Image, starts: anyio.CapacityLimiter
    ) -> str:
        async with starts:
            limit = _START_ANSWERS * self._timeout
            with anyio.move_on_after(limit):
                return await self._started(spec, image)
        raise ProviderUnavailableError(
            f"Docker at {self._daemon.endpoint.url} does not start a sandbox in time, which is "
            f"{limit:g} s: it is overloaded, or hangs; see its log, or give a larger timeout=",
            provider=self.name,
        )

    async def _started(self, spec: SandboxSpec, image: _container.Image) -> str:
        hosts = Hosts.DAEMON if image.reference in self._by_daemon else hosts_from(spec, image)
        volume = await self._agent.ensure(image.reference)
        try:
            return await self._start(spec, image, volume, hosts)
        except _AgentMissingError:
            volume = await self._agent.ensure(image.reference, refill=True)
        try:
            return await self._start(spec, image, volume, hosts)
        except _HostsMissingError:
            # It is there, but the daemon mounts no part of a volume, or the image's /etc is closed.
            self._by_daemon.add(image.reference)
            return await self._start(spec, image, volume, Hosts.DAEMON)

    async def _start(
        self, spec: SandboxSpec, image: _container.Image, volume: Volume, hosts: Hosts
    ) -> str:
        body = _container.create_body(
            spec,
            image,
            agent_volume=volume.name,
            runtime=self._runtime,
            network=self._network,
            capabilities=self._capabilities,
            endpoint=hosts is Hosts.DAEMON,
            mounts={HOSTS_PATH: volume.hosts} if hosts is Hosts.MOUNT else {},
        )
        # Chosen here, so that a container can be removed whose creation nobody saw the end of.
        name = f"sandboxkit-{secrets.token_hex(8)}"
        stream: ByteStream | None = None
        answered = False
        try:
            container_id = await self._daemon.call(
                lambda api: str(api.create_container_from_config(body, name)["Id"]),
                what=f"create a sandbox from image {image.reference!r}",
                sandbox_id=name,
                shield=True,
            )
            answered = True
            self._ways.made(name, container_id)
            # Before the start: nothing of the agent's first words is lost, and a client that
            # is killed from here on takes the sandbox with it.
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
                if AGENT_PATH in str(error) and "no such file" in str(error):
                    raise _AgentMissingError(str(error), provider=self.name) from error
                raise
            await self._attach(name, stream, config_of(spec))
            if not spec.detach:
                self._owned[name] = stream
            if hosts is Hosts.AGENT:
                await self._write_hosts(name)
            if spec.reuse == "reset":
                await self._shorten(name)  # it is there for many jobs
            else:
                self._ways.count(name)
        except BaseException as error:
            answered = answered or isinstance(error.__cause__, APIError)
            mounted = hosts is Hosts.MOUNT and isinstance(error, SandboxError)
            self._ways.forget(name)
            with anyio.CancelScope(shield=True):
                if stream is not None:
                    await anyio.aclose_forcefully(stream)
                await self._removals.undo(name, answered=answered, seconds=self._timeout / 2)
            if mounted and volume.hosts in str(error):
                raise _HostsMissingError(str(error), provider=self.name) from error
            raise
        return name

    async def _write_hosts(self, sandbox_id: str) -> None:
        try:
            await self.write_file(sandbox_id, HOSTS_PATH, HOSTS, mode=0o644)
        except SandboxFileError as error:
            raise _HostsMissingError(
                f"sandbox {sandbox_id!r} did not start: {error}", provider=self.name
            ) from error

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        labels = [f"{_container.MARKER}=1"]
        labels += [f"{key}={value}" for key, value in tags.items()]
        found = await self._daemon.call(
            lambda api: _list(api.containers(all=True, filters={"label": labels})),
            what="list sandboxes",
        )
        for info in found:
            # The daemon also matches labels that came with the image.
            if info is not None and all(info.tags.get(key) == tags[key] for key in tags):
                yield info

    async def get(self, sandbox_id: str) -> SandboxInfo:
        if not ID_PATTERN.fullmatch(sandbox_id):
            raise self._not_found(sandbox_id)
        info = await self._daemon.call(
            lambda api: _described(sandbox_id, api.inspect_container(sandbox_id)),
            what="describe a sandbox",
            sandbox_id=sandbox_id,
        )
        if info is None:
            raise self._not_found(sandbox_id)
        return info

    async def delete(self, sandbox_id: str) -> None:
        if not ID_PATTERN.fullmatch(sandbox_id):
            return
        self._deleting.add(sandbox_id)
        try:
            with anyio.CancelScope(shield=True):
                try:
                    if not await self._left(sandbox_id):
                        await self._until_removed(sandbox_id)
                finally:
                    # If the daemon is silent: what is not detached ends without its lifeline.
                    await self._forget(sandbox_id)
            self._owned.pop(sandbox_id, None)
            self._ways.forget(sandbox_id)
        finally:
            self._deleting.discard(sandbox_id)

    async def _left(self, sandbox_id: str) -> bool:
        """Let its agent end it, which spares the runtime a kill; True when nothing is left."""
        stream = self._owned.get(sandbox_id)
        if stream is None:
            return False
        try:
            await stream.send_eof()
        except (NotImplementedError, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            return False  # it has ended by itself; or TLS, which has no half of a connection
        try:
            return await self._daemon.call(
                lambda api: _is_gone(api.wait(sandbox_id, timeout=_LEAVING, condition="removed")),
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
                    f"Docker does not finish removing {sandbox_id!r}; see the daemon's log",
                    provider=self.name,
                    sandbox_id=sandbox_id,
                )
            await anyio.sleep(_POLL)

    async def _removed(self, sandbox_id: str) -> bool:
        """Ask for the removal; True when nothing is left. The agent's exit starts one, too."""

        def remove(api: Any) -> bool:
            api.remove_container(sandbox_id, v=True, force=True)
            return True

        def busy(error: BaseException) -> bool:
            # 500: the file system is still busy; the daemon wants to be asked again.
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
            raise self._not_found(sandbox_id)
        direct = await self._ways.open(sandbox_id)
        if direct is not None:
            return direct
        try:
            started = await self._daemon.call(
                lambda api: str(
                    api.exec_create(
                        sandbox_id, [AGENT_PATH, "connect", AGENT_SOCKET], stdin=True, user="0:0"
                    )["Id"]
                ),
                what="connect to a sandbox",
                sandbox_id=sandbox_id,
                allow=lambda error: is_status(error, 409),
            )
        except APIError as error:
            raise self._not_found(sandbox_id) from error  # 409: it is not running
        return await self._daemon.stream(f"/exec/{started}/start", {"Detach": False, "Tty": False})

    async def _client(self, sandbox_id: str) -> AgentClient:
        if self._ways.is_due(sandbox_id):
            with suppress(SandboxError):  # the daemon's own way is still there
                await self._shorten(sandbox_id)
        return await super()._client(sandbox_id)

    async def _shorten(self, sandbox_id: str) -> None:
        """Send requests past the daemon from now on, where that can be done."""
        direct = await self._ways.open(sandbox_id)
        if direct is not None:
            await self._prefer(sandbox_id, direct)

    def _agent_pid(self, sandbox_id: str) -> int | None:
        return self._ways.pid(sandbox_id)

    def _grace(self) -> float:
        # A daemon's network may break under a stream; this machine's sockets do not.
        return 0.0 if self._daemon.endpoint.socket_path is not None else _GRACE

    def _is_deleting(self, sandbox_id: str) -> bool:
        return sandbox_id in self._deleting

    async def _why_ended(self, sandbox_id: str, reason: str) -> SandboxError:
        if self._is_deleting(sandbox_id):
            reason = "it was deleted"  # its agent knows no more than that its owner went away
        if reason:
            return await super()._why_ended(sandbox_id, reason)
        try:
            with anyio.fail_after(5):
                said = await self._daemon.call(
                    lambda api: _last_words(api, sandbox_id), what="tell how a sandbox ended"
                )
        except (SandboxError, TimeoutError):
            return await super()._why_ended(sandbox_id, reason)
        return SandboxTerminatedError(
            f"sandbox {sandbox_id!r} ended: {said}",
            provider=self.name,
            sandbox_id=sandbox_id,
            out_of_memory=said == _OUT_OF_MEMORY,
        )

    async def diagnose(self) -> Diagnosis:
        isolation = "container: own namespaces, no capability, seccomp; the kernel is shared"
        if self._runtime is not None:
            isolation = f"container under the runtime {self._runtime!r}"
        try:
            info = await self._daemon.info()
        except SandboxError as error:
            return Diagnosis(
                available=False, isolation=isolation, detail="no daemon", remedy=str(error)
            )
        detail = f"Docker {info.version} at {self._daemon.endpoint.url}, {info.architecture}"
        if self._runtime is not None and self._runtime not in info.runtimes:
            return Diagnosis(
                available=False,
                isolation=isolation,
                detail=f"{detail}; its runtimes: {', '.join(info.runtimes)}",
                remedy=f"install the runtime {self._runtime!r} and name it in daemon.json",
            )
        if not any("name=seccomp" in option for option in info.security):
            return Diagnosis(
                available=True,
                isolation=isolation,
                detail=f"{detail}; without seccomp",
                remedy="use a kernel and a daemon with seccomp",
            )
        image = _default_image()
        missing = not await self._images.present(image)
        return Diagnosis(
            available=True,
            isolation=isolation,
            detail=detail,
            remedy=f"the default image {image!r} will be pulled on first use; "
            "set SANDBOXKIT_DOCKER_IMAGE to use another"
            if missing
            else "",
        )

    async def aclose(self) -> None:
        await super().aclose()
        try:
            await self._removals.finish()
        finally:
            await self._daemon.aclose()

    def _not_found(self, sandbox_id: str) -> SandboxNotFoundError:
        return SandboxNotFoundError(
            f"no sandbox {sandbox_id!r}; it may have ended",
            provider=self.name,
            sandbox_id=sandbox_id,
        )


class _AgentMissingError(SandboxStartError):
    """The agent's volume is empty; it must be filled again."""


class _HostsMissingError(_AgentMissingError):
    """It is, or /etc/hosts cannot be made without the daemon."""


# Any: what the daemon says is untyped. What has another form than it should fails in Daemon.call.
def _list(said: Any) -> list[SandboxInfo | None]:
    if not isinstance(said, list):
        raise TypeError(f"no list, but {said!r:.100}")
    return [_listed(item) for item in said]


def _listed(item: Any) -> SandboxInfo | None:
    """One of the containers that a list names; None if it is no sandbox, or is just going."""
    names = [name.removeprefix("/") for name in item.get("Names") or ()]
    name = next((name for name in names if ID_PATTERN.fullmatch(name)), None)
    if name is None or item.get("State") == "removing":
        return None
    return _container.sandbox_info(
        name,
        str(item.get("State")),
        item.get("Labels") or {},
        str(item.get("Image")),
        datetime.fromtimestamp(int(item.get("Created") or 0), UTC),
    )


def _described(sandbox_id: str, said: Any) -> SandboxInfo | None:
    """A container that was inspected; None as for `_listed`."""
    labels: dict[str, str] = said["Config"].get("Labels") or {}
    state = str(said["State"]["Status"])
    if labels.get(_container.MARKER) != "1" or state == "removing":
        return None
    # Nanoseconds are more than fromisoformat takes.
    created = datetime.fromisoformat(str(said["Created"])[:19]).replace(tzinfo=UTC)
    image = str(said["Config"].get("Image"))
    return _container.sandbox_info(sandbox_id, state, labels, image, created)


def _is_gone(said: Any) -> bool:
    """Whether what was waited for happened: no removal that failed."""
    return isinstance(said["StatusCode"], int) and not said.get("Error")


_TOGETHER_NS = 2_000_000_000
_OUT_OF_MEMORY = "it ran out of memory; raise memory_mb"


def _last_words(api: Any, sandbox_id: str) -> str:
    """How the daemon's recent events say that a container died."""
    now = time.time()
    events = api.events(
        since=f"{now - 60:.3f}",
        until=f"{now + 0.3:.3f}",  # the stream's end may be ahead of the event
        filters={"container": sandbox_id, "event": ["oom", "die", "kill"]},
        decode=True,
    )
    seen = {event["Action"]: event for event in events}
    if "die" not in seen:
        return "the connection to it broke"
    died = seen["die"]
    if "kill" in seen:
        signal = seen["kill"]["Actor"]["Attributes"].get("signal", "?")
        return f"its agent was killed through Docker, with signal {signal}"
    # An older one was of a command alone, which the sandbox outlived.
    if "oom" in seen and abs(seen["oom"]["timeNano"] - died["timeNano"]) < _TOGETHER_NS:
        return _OUT_OF_MEMORY
    return f"its agent was killed (exit status {died['Actor']['Attributes'].get('exitCode')})"


def _default_image() -> str:
    return os.environ.get("SANDBOXKIT_DOCKER_IMAGE") or _DEFAULT_IMAGE
