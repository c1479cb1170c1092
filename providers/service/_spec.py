"""Checks a SandboxSpec: refuses what no service can honour. Its backend checks the rest."""

from sandboxkit.providers import _rules
from sandboxkit.providers._rules import STRICT, UNICODE, Rule, never
from sandboxkit.providers.service._errors import NAME
from sandboxkit.types import SandboxSpec

UNSUPPORTED = {
    "isolation": "the service decides how its sandboxes are isolated; leave the option out",
    "snapshot": "a service lends no snapshots; set the sandbox up anew, or build an image",
    "mounts": "a service lends sandboxes without datasets and volumes; build the data into an image, or upload it",
}
"""The fields that a service cannot honour, each with the reason."""
_SENT = (
    *("image", "env", "secrets", "workdir", "user", "cpus", "memory_mb", "disk_mb", "pids", "gpu"),
    *("profile", "network", "command", "detach", "lifetime", "tags"),
)
RULES = (
    *never(UNSUPPORTED),
    *UNICODE,
    *STRICT,
    Rule(
        "public_ports",
        "a service gives no public addresses; sandbox.expose(port) leads a port of this machine there",
        lambda spec: spec.public_ports != (),
    ),
    Rule(
        "reuse",
        "a service's sandboxes are not reset; leave it out",
        lambda spec: spec.reuse != "never",
    ),
    Rule(
        "lifetime",
        "a service limits the lifetime of every sandbox; give seconds",
        lambda spec: spec.lifetime is None,
    ),
)


def check(spec: SandboxSpec) -> None:
    """Raise ConfigurationError for an option that no service can honour."""
    _rules.check(spec, RULES, provider=NAME)


def request(spec: SandboxSpec) -> dict[str, object]:
    """Return the options of a sandbox as the service's JSON."""
    default = SandboxSpec(lifetime=-1.0)  # which is always sent
    values = {name: getattr(spec, name) for name in _SENT}
    return {name: value for name, value in values.items() if value != getattr(default, name)}
