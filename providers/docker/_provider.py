"""The docker provider: containers made, found and removed; all else goes through the agent."""

import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

import anyio
from anyio.abc import ByteStream
from docker.errors import DockerException  # type: ignore[import-untyped]  # ships no types

from sandboxkit.errors import (
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.providers._agent.launch import config_of
from sandboxkit.providers._agent.provider import AgentProvider
from sandboxkit.providers.docker import _container, _direct
from sandboxkit.providers.docker._agent_volume import AgentVolume
from sandboxkit.providers.docker._container import AGENT_PATH, AGENT_SOCKET, ID_PATTERN
from sandboxkit.providers.docker._daemon import Daemon
from sandboxkit.providers.docker._endpoint import Endpoint
from sandboxkit.providers.docker._errors import is_status
from sandboxkit.providers.docker._images import Images, PullProgress
from sandboxkit.types import Diagnosis, SandboxInfo, SandboxSpec

__all__ = ["DockerProvider"]

_DEFAULT_IMAGE = "python:3.11-slim"
_POLL = 0.02


class DockerProvider(AgentProvider):
    """Containers on the daemon that DOCKER_HOST or the docker context names.

    The image defaults to SANDBOXKIT_DOCKER_IMAGE, then python:3.11-slim.
    """

    name: ClassVar[str] = "docker"

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
        `timeout` bounds each answer of the daemon, in seconds; `on_pull` is called in a worker
        thread."""
        super().__init__()
        self._daemon = Daemon(Endpoint.resolve(base_url), timeout=timeout)
        self._images = Images(self._daemon, on_pull)
        self._agent = AgentVolume(self._daemon)
        self._runtime = runtime
        self._network = docker_network
        self._capabilities = _container.check_capabilities(capabilities)
        self._timeout = timeout
        self._starts: anyio.CapacityLimiter | None = None
        self._deleting: set[str] = set()

    def check(self, spec: SandboxSpec) -> None:
        _container.check(spec)

    async def create(self, spec: SandboxSpec) -> str:
        self.check(spec)
        reference = spec.image or _default_image()
        if self._starts is None:
            # More at a time does not start more a second, it only makes each wait longer.
            self._starts = anyio.CapacityLimiter(2 * (await self._daemon.info()).cpus)
        image = await self._images.ensure(reference)
        async with self._starts:
            volume = await self._agent.ensure(image.reference)
            try:
                return await self._start(spec, image, volume)
            except _AgentMissingError:
                await self._agent.ensure(image.reference, refill=True)
                return await self._start(spec, image, volume)

    async def _start(self, spec: SandboxSpec, image: _container.Image, volume: str) -> str:
        body = _container.create_body(
            spec,
            image,
            agent_volume=volume,
            runtime=self._runtime,
            network=self._network,
            capabilities=self._capabilities,
        )
        # Chosen here, so that a container can be removed whose creation nobody saw the end of.
        name = f"sandboxkit-{secrets.token_hex(8)}"
        stream: ByteStream | None = None
        try:
            await self._daemon.call(
                lambda api: api.create_container_from_config(body, name),
                what=f"create a sandbox from image {image.reference!r}",
                sandbox_id=name,
                shield=True,
            )
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
            direct = await self._direct(name)
            if direct is not None:
                await self._prefer(name, direct)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                if stream is not None:
                    await anyio.aclose_forcefully(stream)
                try:
                    await self.delete(name)
                except SandboxError as failure:
                    error.add_note(f"and {name} could not be removed: {failure}")
            raise
        return name

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        labels = [f"{_container.MARKER}=1"]
        labels += [f"{key}={value}" for key, value in tags.items()]
        found: list[dict[str, Any]] = await self._daemon.call(
            lambda api: api.containers(all=True, filters={"label": labels}), what="list sandboxes"
        )
        for item in found:
            names = [name.removeprefix("/") for name in item.get("Names") or ()]
            name = next((name for name in names if ID_PATTERN.fullmatch(name)), None)
            if name is None or item.get("State") == "removing":
                continue
            info = _container.sandbox_info(
                name,
                str(item.get("State")),
                item.get("Labels") or {},
                str(item.get("Image")),
                datetime.fromtimestamp(int(item.get("Created") or 0), UTC),
            )
            # The daemon also matches labels that came with the image.
            if all(info.tags.get(key) == value for key, value in tags.items()):
                yield info

    async def get(self, sandbox_id: str) -> SandboxInfo:
        if not ID_PATTERN.fullmatch(sandbox_id):
            raise self._not_found(sandbox_id)
        said: dict[str, Any] = await self._daemon.call(
            lambda api: api.inspect_container(sandbox_id),
            what="describe a sandbox",
            sandbox_id=sandbox_id,
        )
        config: dict[str, Any] = said["Config"]
        labels: dict[str, str] = config.get("Labels") or {}
        state = str(said["State"]["Status"])
        if labels.get(_container.MARKER) != "1" or state == "removing":
            raise self._not_found(sandbox_id)
        # Nanoseconds are more than fromisoformat takes.
        created = str(said["Created"])[:19]
        return _container.sandbox_info(
            sandbox_id,
            state,
            labels,
            str(config.get("Image")),
            datetime.fromisoformat(created).replace(tzinfo=UTC),
        )

    async def delete(self, sandbox_id: str) -> None:
        if not ID_PATTERN.fullmatch(sandbox_id):
            return
        self._deleting.add(sandbox_id)
        try:
            with anyio.CancelScope(shield=True):
                # The daemon first: asked while the agent is already leaving, it takes longer.
                await self._until_removed(sandbox_id)
                await self._forget(sandbox_id)
        finally:
            self._deleting.discard(sandbox_id)

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
        direct = await self._direct(sandbox_id)
        if direct is not None:
            return direct
        try:
            started: dict[str, str] = await self._daemon.call(
                lambda api: api.exec_create(
                    sandbox_id, [AGENT_PATH, "connect", AGENT_SOCKET], stdin=True, user="0:0"
                ),
                what="connect to a sandbox",
                sandbox_id=sandbox_id,
                allow=lambda error: is_status(error, 409),
            )
        except DockerException as error:
            raise self._not_found(sandbox_id) from error  # 409: it is not running
        return await self._daemon.stream(
            f"/exec/{started['Id']}/start", {"Detach": False, "Tty": False}
        )

    async def _direct(self, sandbox_id: str) -> ByteStream | None:
        """A stream past the daemon, where it runs on this machine and we are root."""
        if self._daemon.endpoint.socket_path is None or os.geteuid() != 0:
            return None
        said: dict[str, Any] = await self._daemon.call(
            lambda api: api.inspect_container(sandbox_id),
            what="connect to a sandbox",
            sandbox_id=sandbox_id,
        )
        return await _direct.connect(int(said["State"]["Pid"]), said["Id"], AGENT_SOCKET)

    async def _why_ended(self, sandbox_id: str, reason: str) -> SandboxError:
        if reason or sandbox_id in self._deleting:
            reason = reason or "it was deleted"
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
        for sandbox_id in list(self._clients):
            await self._forget(sandbox_id)
        await self._daemon.aclose()

    def _not_found(self, sandbox_id: str) -> SandboxNotFoundError:
        return SandboxNotFoundError(
            f"no sandbox {sandbox_id!r}; it may have ended",
            provider=self.name,
            sandbox_id=sandbox_id,
        )


class _AgentMissingError(SandboxStartError):
    """The agent's volume is empty; it must be filled again."""


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
    seen = {event["Action"]: event["Actor"]["Attributes"] for event in events}
    if "oom" in seen:
        return _OUT_OF_MEMORY
    if "die" in seen:
        return f"its agent was killed (exit status {seen['die'].get('exitCode')})"
    return "the connection to it broke"


def _default_image() -> str:
    return os.environ.get("SANDBOXKIT_DOCKER_IMAGE") or _DEFAULT_IMAGE
