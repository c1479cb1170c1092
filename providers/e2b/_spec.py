"""Says what E2B can honour of a SandboxSpec, and makes its network settings."""

import re
from typing import Any

from e2b.api.client.models import SandboxNetworkConfig
from e2b.api.client.types import UNSET, Unset

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers._rules import STRICT, UNICODE, never
from sandboxkit.types import SandboxSpec

UNSUPPORTED = {
    "cpus": "the template fixes the number of CPUs; build one with `e2b template create --cpu-count`",
    "memory_mb": "the template fixes the memory; build one with `e2b template create --memory-mb`",
    "disk_mb": "the account's plan fixes the disk of a sandbox",
    "pids": "E2B does not limit the processes of a sandbox",
    "gpu": "E2B has no GPUs",
    "isolation": "E2B's sandboxes are virtual machines, with a kernel of their own; leave the option out",
    "mounts": "E2B's volumes cannot be mounted read-only, and not every account has them; build the data into a "
    "template, or upload it",
}
"""The SandboxSpec fields that E2B cannot honour, each with the reason."""
_OLDEST = (0, 2, 10)
"""The oldest version of E2B's daemon that was read: OpenKruise Agents builds it."""
_EVERYTHING = "0.0.0.0/0"


RULES = (
    *never(UNSUPPORTED),
    *STRICT,
    *UNICODE,
)


def check_version(version: str, sandbox_id: str) -> None:
    """Raise ConfigurationError for a sandbox whose daemon is too old.

    A string that is not a version number passes, because servers other than E2B's use their own.
    """
    found = re.fullmatch(r"v?([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6}).*", version, re.S)
    if found is not None and tuple(map(int, found.groups())) < _OLDEST:
        raise ConfigurationError(
            f"sandbox {sandbox_id!r} runs envd {version}, and sandboxkit needs "
            f"{'.'.join(map(str, _OLDEST))} or later: build its template again"
        )


def network(spec: SandboxSpec, *, denied: bool = False) -> SandboxNetworkConfig | Unset:
    """Return E2B's network settings: the allowed servers of `Egress(native=True)`, and whether public ports
    need a token. `denied` adds that everything is denied, for servers that ignore allow_internet_access."""
    rules, token = spec.native_rules, False if spec.public_ports else UNSET
    if rules is None:
        if not (denied or spec.public_ports):
            return UNSET
        deny: list[str] | Unset = [_EVERYTHING] if denied else UNSET
        return SandboxNetworkConfig(deny_out=deny, allow_public_traffic=token)
    return SandboxNetworkConfig(
        allow_out=[*rules.names, *rules.networks],
        deny_out=[_EVERYTHING],
        allow_public_traffic=token,
    )


# Any: the SDK's class, or UNSET.
def allowed(stored: Any) -> list[str]:
    """Return the names and networks that a sandbox may reach, according to its stored settings."""
    if _EVERYTHING not in (getattr(stored, "deny_out", UNSET) or []):
        return [_EVERYTHING]
    return getattr(stored, "allow_out", UNSET) or []
