"""Chooses who writes /etc/hosts, which a container without a daemon's network endpoint lacks.

The daemon gives an endpoint even to a container of the network "none". For that the runtime starts
the daemon's whole program once more, which is two fifths of the cost of a start. With
`NetworkDisabled` the container keeps the network namespace that the runtime makes, with a loopback
interface only. `NetworkMode` stays "none" for daemons that ignore `NetworkDisabled`. The daemon
then writes neither /etc/resolv.conf, which is of no use without a network, nor /etc/hosts.
"""

from enum import Enum, auto

from sandboxkit.providers.docker._container import ContainerImage, runs_as_root
from sandboxkit.types import SandboxSpec

HOSTS_PATH = "/etc/hosts"
HOSTS = b"""\
127.0.0.1	localhost
::1	localhost ip6-localhost ip6-loopback
fe00::0	ip6-localnet
ff00::0	ip6-mcastprefix
ff02::1	ip6-allnodes
ff02::2	ip6-allrouters
127.0.0.1	sandbox
"""
"""The content that the daemon writes, with the own name as an extra host."""


class Hosts(Enum):
    """Where a sandbox's /etc/hosts comes from."""

    DAEMON = auto()
    """The daemon writes it, for a container with a network endpoint."""
    MOUNT = auto()
    """A read-only mount from the agent's volume: nobody in the sandbox can change it."""
    AGENT = auto()
    """The agent writes it; its commands may change it."""


def hosts_from(spec: SandboxSpec, image: ContainerImage, *, podman: bool = False) -> Hosts:
    """Return the cheapest source of /etc/hosts that has it in place before any command runs."""
    if spec.network != "none":
        return Hosts.DAEMON
    # Podman would mount a copy of its machine's own file.
    if spec.profile == "strict" or podman:
        return Hosts.MOUNT
    # The agent writes as the sandbox's user, and only after the main command has started.
    return Hosts.AGENT if runs_as_root(spec, image) and not spec.command else Hosts.DAEMON
