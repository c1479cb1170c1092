"""Checks whether E2B can honour a SandboxSpec, and makes the metadata stored with a sandbox."""

import re
from typing import Any

from e2b.api.client.models import SandboxNetworkConfig
from e2b.api.client.types import UNSET, Unset

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers import _rules
from sandboxkit.providers._hosted.snapshots import SNAPSHOT_TAG
from sandboxkit.providers._rules import STRICT, UNICODE, at_most, never
from sandboxkit.providers.e2b._answers import NAME
from sandboxkit.types import SandboxSpec

MAX_LIFETIME = 24 * 3600
"""The limit (s) of E2B's larger plans; E2B itself enforces the limit of a smaller plan."""
MARKER = "sandboxkit.e2b"
KEY_TAG = "sandboxkit.create"
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
    at_most("lifetime", MAX_LIFETIME, "it ends every sandbox after that many seconds"),
    *UNICODE,
)


def check(spec: SandboxSpec) -> None:
    """See `Provider.check`."""
    _rules.check(spec, RULES, provider=NAME)


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


def metadata(spec: SandboxSpec, key: str) -> dict[str, str]:
    """Return the metadata to store with a sandbox: its tags, sandboxkit's marker, its snapshot, and `key`."""
    snapshot = {} if spec.snapshot is None else {SNAPSHOT_TAG: spec.snapshot}
    return {**spec.tags, **snapshot, MARKER: "1", KEY_TAG: key}


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
def check_network(spec: SandboxSpec, stored: Any, sandbox_id: str) -> None:
    """Raise ConfigurationError if the server did not store `native_rules`, and so would allow everything."""
    names, networks = spec.native_rules or ((), ())
    denied = getattr(stored, "deny_out", UNSET) or []
    allowed = getattr(stored, "allow_out", UNSET) or []
    if _EVERYTHING not in denied or not set(allowed) <= {*names, *networks}:
        raise ConfigurationError(
            "the server at E2B_API_URL did not store the list of Egress(native=True); it may be too old for "
            "it: leave native=True out"
        )
