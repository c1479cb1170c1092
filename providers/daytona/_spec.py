"""What of a SandboxSpec Daytona can honour, and how it is sent."""

import math

from daytona_api_client_async import CreateBuildInfo, CreateSandbox

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers._hosted.lifetime import whole_seconds
from sandboxkit.providers.daytona._errors import NAME
from sandboxkit.types import SandboxSpec

__all__ = [
    "MARKER",
    "MAX_LIFETIME",
    "UNSUPPORTED",
    "check",
    "minutes",
    "request",
]

MAX_LIFETIME = 30 * 24 * 3600
"""Seconds; an organization's own limit may be lower, and is Daytona's to name."""
MARKER = "sandboxkit.daytona"
_SNAPSHOT = "snapshot:"
UNSUPPORTED = {
    "pids": "Daytona does not limit the processes of a sandbox",
    "gpu": "sandboxes with GPUs are not supported by this provider yet",
}
"""The fields that Daytona cannot honour, each with the reason."""
_SIZES = {"cpus": 1, "memory_mb": 1024, "disk_mb": 1024}


def check(spec: SandboxSpec) -> None:
    """See `Provider.check`."""
    for field, reason in UNSUPPORTED.items():
        value = getattr(spec, field)
        if value is not None:
            raise _refused(f"{field}={value!r}: {reason}")
    for field, unit in _SIZES.items():
        value = getattr(spec, field)
        if value is None:
            continue
        if not _is_built(spec):
            raise _refused(
                f"{field}={value!r}: a snapshot has its own size; give an image of a registry "
                "such as image='python:3.12'"
            )
        if value % unit:
            raise _refused(f"{field}={value!r}: it takes multiples of {unit}")
    if spec.profile != "standard":
        raise _refused(
            f"profile={spec.profile!r}: programs run as the image's user, and so does what would "
            "keep that user from the system; use profile='standard'"
        )
    if spec.image is not None and any(c.isspace() or not c.isprintable() for c in spec.image):
        raise _refused(f"image={spec.image!r}: an image has no spaces or line breaks")
    whole_seconds(spec.lifetime, provider=NAME, maximum=MAX_LIFETIME)
    for where in ("env", "secrets", "tags"):
        for name, value in getattr(spec, where).items():
            if any("\ud800" <= character <= "\udfff" for character in name + value):
                raise _refused(f"{where}[{name!r}]: it is not Unicode text")


def request(spec: SandboxSpec, name: str, target: str | None) -> CreateSandbox:
    """What to ask for; `name` is the key of the attempt, which Daytona gives to one sandbox."""
    image = spec.image or ""
    snapshot = image.removeprefix(_SNAPSHOT) if image.startswith(_SNAPSHOT) else None
    return CreateSandbox(
        name=name,
        snapshot=snapshot,
        build_info=(
            CreateBuildInfo(dockerfile_content=f"FROM {image}\n") if _is_built(spec) else None
        ),
        user=spec.user,
        labels={**spec.tags, MARKER: "1"},
        network_block_all=spec.network == "none",
        target=target,
        cpu=None if spec.cpus is None else int(spec.cpus),
        memory=None if spec.memory_mb is None else spec.memory_mb // 1024,
        disk=None if spec.disk_mb is None else spec.disk_mb // 1024,
        # Only our lifetime ends it: not that nobody calls, and stopping deletes it.
        auto_stop_interval=0,
        auto_delete_interval=0,
        ttl_minutes=minutes(spec.lifetime),
    )


def minutes(lifetime: float | None) -> int:
    """A lifetime in Daytona's whole minutes, rounded up."""
    return math.ceil(whole_seconds(lifetime, provider=NAME, maximum=MAX_LIFETIME) / 60)


def _is_built(spec: SandboxSpec) -> bool:
    return spec.image is not None and not spec.image.startswith(_SNAPSHOT)


def _refused(what: str) -> ConfigurationError:
    return ConfigurationError(f"provider 'daytona' cannot honour {what}", provider=NAME)
