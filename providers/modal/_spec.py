"""What a spec is to Modal: the arguments of its `Sandbox.create`, and what cannot be honoured."""

import time
from typing import TypedDict

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers._hosted import strict
from sandboxkit.providers._hosted.lifetime import whole_seconds
from sandboxkit.providers.modal import _tags
from sandboxkit.types import SandboxSpec

__all__ = ["CREATED", "MAX_LIFETIME", "UNSUPPORTED", "CreateOptions", "check", "create_options"]

MAX_LIFETIME = 24 * 3600
CREATED = "sandboxkit.created"
"""The tag with the time of creation: the SDK does not pass on the one that Modal has."""

UNSUPPORTED = {
    "disk_mb": "its sandboxes have no disk limit; leave it out",
    "pids": "it has no process limit; leave it out",
}
_MEMORY_MB = (128, 1024)
"""Reserved, and the limit, for a sandbox that asks for nothing."""


class CreateOptions(TypedDict):
    """Arguments of `modal.Sandbox.create`; the rest of them is not the spec's business."""

    block_network: bool
    cpu: tuple[float, float] | None
    gpu: str | None
    memory: tuple[int, int]
    tags: dict[str, str]
    timeout: int


def check(spec: SandboxSpec) -> None:
    """Refuse what Modal cannot honour; raises ConfigurationError."""

    def refuse(field: str, value: object, why: str) -> ConfigurationError:
        return ConfigurationError(f"modal cannot honour {field}={value!r}: {why}", provider="modal")

    for field, why in UNSUPPORTED.items():
        if getattr(spec, field) is not None:
            raise refuse(field, getattr(spec, field), why)
    strict.check(spec, provider="modal")
    if spec.lifetime is None:
        raise refuse("lifetime", None, f"it cannot renew one; use at most {MAX_LIFETIME} s")
    whole_seconds(spec.lifetime, provider="modal", maximum=MAX_LIFETIME)
    _tags.encode(spec.tags)


def create_options(spec: SandboxSpec) -> CreateOptions:
    """Arguments for a spec that `check` has passed."""
    return {
        "block_network": spec.network == "none",
        "cpu": None if spec.cpus is None else (spec.cpus, spec.cpus),
        "gpu": spec.gpu,
        "memory": _MEMORY_MB if spec.memory_mb is None else (spec.memory_mb, spec.memory_mb),
        "tags": _tags.encode({**spec.tags, CREATED: f"{time.time():.0f}"}),
        "timeout": whole_seconds(spec.lifetime, provider="modal", maximum=MAX_LIFETIME),
    }
