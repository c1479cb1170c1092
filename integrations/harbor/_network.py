"""Converts Harbor's network settings of a task's phases to a sandbox's `network`."""

from collections.abc import Sequence

from sandboxkit import ConfigurationError, Egress
from sandboxkit.types import Network

PUBLIC, NONE, ALLOWLIST = "public", "no-network", "allowlist"


def network_of(mode: object, hosts: Sequence[str] | None = None) -> Network | Egress:
    """Return the sandbox's network for Harbor's `network_mode` and `allowed_hosts`.

    Raises ConfigurationError for an unknown mode, for hosts without the mode "allowlist", and for a host
    that is not a name, such as an IP address.
    """
    if mode != ALLOWLIST and hosts:
        raise ConfigurationError(
            f"allowed_hosts={hosts!r} needs network_mode={ALLOWLIST!r}, not {mode!r}"
        )
    if mode not in (PUBLIC, NONE, ALLOWLIST):
        raise ConfigurationError(
            f"network_mode={mode!r} cannot be honoured; there are {PUBLIC}, {NONE} and {ALLOWLIST}"
        )
    if mode == ALLOWLIST:
        return Egress(allow=hosts) if hosts else "none"
    return "internet" if mode == PUBLIC else "none"


def changeable(network: Network | Egress) -> Network | Egress:
    """Return an equivalent network that can be changed later, for a sandbox whose phases differ.

    "internet" cannot be taken away from a running sandbox. It is replaced by an `Egress` that allows
    every public name on ports 80 and 443, by HTTP and TLS.
    """
    return Egress(allow=["*"]) if network == "internet" else network
