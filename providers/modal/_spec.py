"""Converts a SandboxSpec to arguments of `modal.Sandbox.create`, and refuses unsupported options."""

import time
from typing import TypedDict

from sandboxkit.providers import _rules
from sandboxkit.providers._hosted.lifetime import whole_seconds
from sandboxkit.providers._hosted.snapshots import SNAPSHOT_TAG
from sandboxkit.providers._rules import STRICT, Rule, at_most, never
from sandboxkit.providers.modal import _tags
from sandboxkit.types import SandboxSpec

MAX_LIFETIME = 24 * 3600
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
        f"Modal cannot renew a lifetime; use at most {MAX_LIFETIME} s",
        lambda spec: spec.lifetime is None,
    ),
    at_most("lifetime", MAX_LIFETIME, "it ends every sandbox after that many seconds"),
)


def check(spec: SandboxSpec) -> None:
    """Raise ConfigurationError for an option that Modal cannot honour."""
    _rules.check(spec, RULES, provider="modal")
    _tags.encode(spec.tags)


def create_options(spec: SandboxSpec) -> CreateOptions:
    """Return the arguments for a spec that `check` has accepted."""
    rules = spec.native_rules
    snapshot = {} if spec.snapshot is None else {SNAPSHOT_TAG: spec.snapshot}
    return {
        "block_network": spec.network == "none" and rules is None,
        "cpu": None if spec.cpus is None else (spec.cpus, spec.cpus),
        "encrypted_ports": list(spec.public_ports),
        "gpu": spec.gpu,
        "memory": _MEMORY_MB if spec.memory_mb is None else (spec.memory_mb, spec.memory_mb),
        "outbound_cidr_allowlist": None if rules is None else list(rules.networks),
        "outbound_domain_allowlist": None if rules is None else list(rules.names),
        "tags": _tags.encode({**spec.tags, **snapshot, CREATED: f"{time.time():.0f}"}),
        "timeout": whole_seconds(spec.lifetime, provider="modal", maximum=MAX_LIFETIME),
    }
