"""Without a network: the runtime's own empty network namespace, and nothing of the daemon's.

A container of the network "none" gets an endpoint there all the same, for which the runtime starts
the daemon's whole program once more: two fifths of what a start costs. With `NetworkDisabled` its
network namespace stays as the runtime makes it, of its own and with no more than the loopback;
`NetworkMode` stays "none" for a daemon that knows no better. All else that the daemon leaves
undone then is /etc/resolv.conf, which leads nowhere anyway, and /etc/hosts.
"""

from enum import Enum, auto

from sandboxkit.providers.docker._container import Image, runs_as_root
from sandboxkit.types import SandboxSpec

__all__ = ["HOSTS", "HOSTS_PATH", "Hosts", "hosts_from"]

HOSTS_PATH = "/etc/hosts"
HOSTS = b"""\
127.0.0.1	localhost
::1	localhost ip6-localhost ip6-loopback
fe00::0	ip6-localnet
ff00::0	ip6-mcastprefix
ff02::1	ip6-allnodes
ff02::2	ip6-allrouters
"""
"""As the daemon would write it."""


class Hosts(Enum):
    """Where a sandbox's /etc/hosts comes from."""

    DAEMON = auto()
    """With an endpoint in a network."""
    MOUNT = auto()
    """The agent's volume, which holds one: nobody in the sandbox can change it."""
    AGENT = auto()
    """The agent writes it; its commands may change it."""


def hosts_from(spec: SandboxSpec, image: Image) -> Hosts:
    """The cheapest way in which /etc/hosts is as the daemon would have it from the first moment."""
    if spec.network != "none":
        return Hosts.DAEMON
    if spec.profile == "strict":
        return Hosts.MOUNT
    # The agent writes as the sandbox's user, and when the main command already runs.
    return Hosts.AGENT if runs_as_root(spec, image) and not spec.command else Hosts.DAEMON
