"""Says what Modal can honour of a SandboxSpec, and converts it to arguments of `modal.Sandbox.create`."""

import time
from collections.abc import Mapping
from typing import TypedDict

from sandboxkit.providers._gvisor import OWN_OR_GVISOR
from sandboxkit.providers._rules import STRICT, Rule, never
from sandboxkit.providers.modal import _tags
from sandboxkit.types import SandboxSpec

LONGEST = 24 * 3600
"""The longest lifetime (s) of a sandbox."""
CREATED = "sandboxkit.created"
"""The tag with the creation time, because the SDK does not expose Modal's own."""

UNSUPPORTED = {
    "disk_mb": "Modal does not limit the disk of a sandbox; leave the option out",
    "pids": "Modal does not limit the processes of a sandbox; leave the option out",
    "mounts": "Modal mounts a volume at one place of a sandbox, and uploads to it have no links and no empty "
    "folders; build the data into an image, or upload it",
}
_MEMORY_MB = (128, 1024)
"""The default memory reservation and limit in MB."""


class CreateOptions(TypedDict):
    """The arguments of `modal.Sandbox.create` that depend on the spec."""

    block_network: bool
    cpu: tuple[float, float] | None
    encrypted_ports: list[int]
    gpu: str | None
    memory: tuple[int, int]
    outbound_cidr_allowlist: list[str] | None
    outbound_domain_allowlist: list[str] | None
    tags: dict[str, str]
    timeout: int


RULES = (
    *never(UNSUPPORTED),
    OWN_OR_GVISOR,
    *STRICT,
    Rule(
        "public_ports",
        "Modal opens no port of a sandbox without a network; give network='internet' or Egress(native=True)",
        lambda spec: (
            bool(spec.public_ports) and spec.network == "none" and spec.native_rules is None
        ),
    ),
    Rule(
        "lifetime",
        f"Modal cannot renew a lifetime; use at most {LONGEST} s",
        lambda spec: spec.lifetime is None,
    ),
)


def create_options(spec: SandboxSpec, tags: Mapping[str, str], seconds: int) -> CreateOptions:
    """Return the arguments for a spec that `check` has accepted."""
    rules = spec.native_rules
    return {
        "block_network": spec.network == "none" and rules is None,
        "cpu": None if spec.cpus is None else (spec.cpus, spec.cpus),
        "encrypted_ports": list(spec.public_ports),
        "gpu": spec.gpu,
        "memory": _MEMORY_MB if spec.memory_mb is None else (spec.memory_mb, spec.memory_mb),
        "outbound_cidr_allowlist": None if rules is None else list(rules.networks),
        "outbound_domain_allowlist": None if rules is None else list(rules.names),
        "tags": _tags.encode({**tags, CREATED: f"{time.time():.0f}"}),
        "timeout": seconds,
    }
