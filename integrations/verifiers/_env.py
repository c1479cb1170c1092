"""A `SingleAgentEnv` whose agent runs in a sandbox of sandboxkit."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import verifiers.v1 as vf

from sandboxkit import ConfigurationError, Session
from sandboxkit.images import RegistryImage, image_on
from sandboxkit.integrations.verifiers._runtime import SandboxkitRuntime, infrastructure


class SandboxkitEnvConfig(vf.SingleAgentEnvConfig):
    """`SingleAgentEnvConfig` with the options of the sandboxes, such as `--env.provider docker`."""

    # Never provisioned. Docker is the only one of verifiers' runtime kinds that needs no tunnel.
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.DockerConfig())
    provider: str | None = None
    """The backend's name. None: SANDBOXKIT_PROVIDER, else the machine's default."""
    image: str | None = None
    """The image for tasks that name none."""
    network: Literal["none", "internet"] = "none"
    """The network of tasks that allow it."""
    gpu: str | None = None
    """The GPUs that a task may ask for, in the words of the provider."""
    lifetime: float = 4 * 3600.0
    """Seconds after which a sandbox ends, even if its episode is still running."""


class SandboxkitEnv(vf.Env[SandboxkitEnvConfig]):
    """Runs one agent per episode, in its own sandbox; `trace.info["sandbox"]` identifies the sandbox."""

    _session: Session | None = None

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Run an episode; the sandbox is deleted when this returns."""
        if self._session is None:
            config = self.config
            names = ("lifetime", "image", "network", "gpu")
            options: dict[str, Any] = {name: getattr(config, name) for name in names}
            self._session = Session(config.provider, tags="verifiers", **options)
        async with boxed(self._session, task) as box:
            trace = await agents.agent.run(task, runtime=box)
            trace.info["sandbox"] = {"provider": box.provider_name, "id": box.id}

    async def stop(self) -> None:
        """Close the session at the end of the run."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


@asynccontextmanager
async def boxed(session: Session, task: vf.Task) -> AsyncIterator[SandboxkitRuntime]:
    """Yield a sandbox with the task's options for `Agent.run(task, runtime=...)`; delete it afterwards.

    The image is one of a registry, and the network is the session's or none. Raises ConfigurationError if the
    task asks for more memory, processors or GPUs than the session has, and for options that sandboxkit or
    the backend does not support, such as a list of allowed hosts; verifiers' SandboxError if the sandbox cannot
    be started.
    """
    box = SandboxkitRuntime(session.sandbox(**_options(session, task.data)))
    box.env = dict(task.runtime_env())
    try:
        with infrastructure():
            await box.start()
        yield box
    finally:
        with infrastructure():
            await box.stop()


# Any: keyword arguments of `Session.sandbox`, which checks them.
def _options(session: Session, data: vf.TaskData) -> dict[str, Any]:
    wants, own = data.resources, session.sandbox().spec
    image = None if data.image is None else RegistryImage(data.image, "a task's image")
    asked: dict[str, Any] = {
        "cpus": wants.cpu,
        "memory_mb": None if wants.memory is None else round(wants.memory * 1024),
        "gpu": wants.gpu,
    }
    for name, value in asked.items():
        most = getattr(own, name)
        more = value != most if name == "gpu" else most is not None and value and value > most
        if value is not None and more:
            raise ConfigurationError(
                f"a task asks for {name}={value!r}; the session's own {name}={most!r} is the most that it may have: "
                f"give {name}={value!r} to the session or to the env's config"
            )
    options = {
        "image": image_on(session.provider_name, image),
        "workdir": data.workdir,
        "network": _network(data),
        **asked,
    }
    return {name: value for name, value in options.items() if value is not None}


def _network(data: vf.TaskData) -> Literal["none"] | None:
    """Return "none" for a task without network, and None for the session's: verifiers' default is ["*"]."""
    if "*" in data.network_block or not data.network_allow:
        return "none"
    if data.network_allow == ["*"] and not data.network_block:
        return None
    raise ConfigurationError(
        f"network_allow={data.network_allow!r} with network_block={data.network_block!r}: a sandbox "
        "has all of the internet or none of it; allow ['*'] or []"
    )
