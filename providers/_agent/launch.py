"""How an agent is started: its command line, and the configuration it gets as its first frame."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxkit.types import SandboxSpec

__all__ = ["DEFAULT_WORKDIR", "AgentConfig", "agent_flags", "config_of"]

DEFAULT_WORKDIR = "/workspace"


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What the owner tells a new agent; it is not on the command line, where `ps` shows it."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to the agent's own environment for every command; secrets included."""
    command: tuple[str, ...] = ()
    """The main command, started at once; empty for none."""


def config_of(spec: SandboxSpec) -> AgentConfig:
    """The configuration that `spec` asks for."""
    return AgentConfig(env={**spec.env, **spec.secrets}, command=spec.command or ())


def agent_flags(
    spec: SandboxSpec,
    *,
    user: str | None = None,
    listen_fd: int | None = None,
    listen_path: str | None = None,
    owner_by_socket: bool = False,
    lease: float | None = None,
    no_network: bool = False,
    drop_env: str = "",
    command_caps: int = 0,
) -> list[str]:
    """The agent's arguments after its own path.

    `user` overrides `spec.user` (the docker provider passes the image's). `listen_fd` is an
    inherited, bound and listening unix stream socket. `listen_path` is a unix socket that the
    agent makes, or an abstract one when it begins with "@"; only processes that entered the
    sandbox from outside (parent pid 0, with `BINARY connect PATH` as bridge) and the host's root may connect.
    With `owner_by_socket` nobody is on its stdin: the first client that brings a configuration is
    the owner. With a `lease` it ends the sandbox when it had no client for so many seconds; a
    client whose stream broke is one for its grace. `no_network` removes all interfaces but the
    loopback, for which it needs CAP_NET_ADMIN. Inherited variables that begin with `drop_env` are
    no command's.
    `command_caps` is a mask of capabilities that the agent was given for root's commands.
    """
    flags = [f"--workdir={spec.workdir or DEFAULT_WORKDIR}"]
    if user or spec.user:
        flags.append(f"--user={user or spec.user}")
    if spec.lifetime is not None:
        flags.append(f"--lifetime={spec.lifetime:.3f}")
    if spec.detach:
        flags.append("--detach")
    if listen_fd is not None:
        flags.append(f"--listen-fd={listen_fd}")
    if command_caps:
        flags.append(f"--command-caps={command_caps}")
    if owner_by_socket:
        flags.append("--owner=socket")
    if lease is not None:
        flags.append(f"--lease={lease:.3f}")
    if no_network:
        flags.append("--no-network")
    if drop_env:
        flags.append(f"--drop-env={drop_env}")
    if listen_path is not None:
        flags.append(f"--listen-path={listen_path}")
    return flags
