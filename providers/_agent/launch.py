"""An agent's command line, and the configuration in the first frame that it receives."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxkit.types import SandboxSpec

DEFAULT_WORKDIR = "/workspace"
"""The default working directory. If it cannot be made, the agent uses a folder in the user's home."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The owner's configuration for a new agent. It is not on the command line, because `ps` shows that."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables added to the agent's own environment for every command, including secrets."""
    command: tuple[str, ...] = ()
    """argv of the main command, which starts at once; empty for none."""
    first: bytes = field(default=b"", repr=False)
    """The payload of the EXEC that is sent along, see `AgentClient.start`; b"" for none."""


def config_of(spec: SandboxSpec) -> AgentConfig:
    """Return the configuration for `spec`."""
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
    open_files: int | None = None,
    gvisor: bool = False,
    no_root: bool = False,
    image_workdir: str = "",
    name_user: bool = False,
) -> list[str]:
    """Return the agent's command-line arguments.

    `user` overrides `spec.user` (the docker provider passes the image's). `listen_fd` is an
    inherited, bound and listening unix stream socket. `listen_path` is a unix socket that the
    agent makes, or an abstract one if it begins with "@"; only processes that entered the sandbox
    from outside (parent pid 0, with `BINARY connect PATH` as bridge) and the host's root may connect.
    With `owner_by_socket` the agent ignores its stdin: the first client that sends a configuration
    becomes the owner. With a `lease` the agent ends the sandbox after that many seconds without a
    client; a client with a broken stream counts during its grace. `no_network` removes all interfaces
    except the loopback, which needs CAP_NET_ADMIN. Commands do not inherit variables whose names begin
    with `drop_env`. `command_caps` is a mask of capabilities that root's commands keep. `open_files` is
    a command's limit of open files. It is below the agent's own limit, so that other processes of the
    agent's user cannot stop the agent from passing descriptors. With `gvisor`, where a command of the
    agent's user could end the agent, there is none, and whoever reaches `listen_path` may connect. With `no_root` nothing
    runs as uid 0, whatever the image calls it. `image_workdir` is the image's WORKDIR, or "." where the runtime
    starts the agent there. It is the default of `spec.workdir`, but for strict sandboxes, whose writable folder would hide
    the image's files there, and for users that may not enter it. With `name_user` it adds the user to /etc/passwd where it can.
    """
    flags = [] if spec.workdir is None else [f"--workdir={spec.workdir}"]
    if image_workdir and spec.profile != "strict":
        flags.append(f"--image-workdir={image_workdir}")
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
    if open_files is not None:
        flags.append(f"--open-files={open_files}")
    if gvisor:
        flags.append("--gvisor")
    if no_root:
        flags.append("--no-root")
    if owner_by_socket:
        flags.append("--owner=socket")
    if lease is not None:
        flags.append(f"--lease={lease:.3f}")
    if no_network:
        flags.append("--no-network")
    if name_user:
        flags.append("--name-user")
    if drop_env:
        flags.append(f"--drop-env={drop_env}")
    if listen_path is not None:
        flags.append(f"--listen-path={listen_path}")
    return flags
