"""The rules of `Egress(native=True)`, which the vendor enforces with its own list of allowed servers."""

import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from sandboxkit._calls import _arguments
from sandboxkit.egress import _names
from sandboxkit.errors import ConfigurationError

_EXAMPLES = (
    "names and IPv4 addresses without a port, such as 'pypi.org', '*.github.com' or '10.1.0.0/16'"
)


class NativeRules(NamedTuple):
    """The rules for a vendor's list of allowed servers."""

    names: tuple[str, ...]
    """Host names in lower case; "*.x" stands for the names below x."""
    networks: tuple[str, ...]
    """IPv4 networks, such as "10.1.0.0/16"; a single address is a /32."""


def native_rules(allow: Sequence[str]) -> NativeRules:
    """Split rules into names and networks.

    Raises ConfigurationError for a rule that no vendor's list can express, and if there is no rule.
    """
    names: list[str] = []
    networks: list[str] = []
    for rule in allow:
        try:
            network = ipaddress.IPv4Network(rule)
        except ValueError:
            network = None
        if network is not None and network.prefixlen > 0:
            networks.append(str(network))
        elif _names.host(rule.removeprefix("*.")) is not None:
            names.append(rule.lower())
        else:
            _arguments.refuse("Egress.allow with native=True", rule, _EXAMPLES)
    if not names and not networks:
        raise ConfigurationError(
            "Egress(native=True) allows nothing: name a server in allow=, or give network='none'"
        )
    return NativeRules(tuple(names), tuple(networks))


def check_alone(given: Sequence[str]) -> None:
    """Raise ConfigurationError if `given` names Egress fields that only this process's proxy can honour."""
    if given:
        raise ConfigurationError(
            f"Egress({given[0]}=...) does not go with native=True: the vendor decides and connects, so this "
            "process adds, limits and records nothing; leave one of the two out"
        )
