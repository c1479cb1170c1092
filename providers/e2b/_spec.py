"""What of a SandboxSpec E2B can honour, and how it is stored with a sandbox."""

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers._hosted.lifetime import whole_seconds
from sandboxkit.providers.e2b._account import NAME
from sandboxkit.types import SandboxSpec

__all__ = ["KEY_TAG", "MARKER", "MAX_LIFETIME", "UNSUPPORTED", "USER_TAG", "check", "metadata"]

MAX_LIFETIME = 24 * 3600
"""Seconds of E2B's larger plans; a smaller plan's limit is E2B's to name."""
MARKER = "sandboxkit.e2b"
KEY_TAG = "sandboxkit.create"
USER_TAG = "sandboxkit.user"
UNSUPPORTED = {
    "cpus": "a template has its processors; build one with `e2b template create --cpu-count`",
    "memory_mb": "a template has its memory; build one with `e2b template create --memory-mb`",
    "disk_mb": "a sandbox's disk comes with the account's plan",
    "pids": "E2B does not limit the processes of a sandbox",
    "gpu": "E2B has no GPUs",
}
"""The fields that E2B cannot honour, each with the reason."""


def check(spec: SandboxSpec) -> None:
    """See `Provider.check`."""
    for field, reason in UNSUPPORTED.items():
        value = getattr(spec, field)
        if value is not None:
            raise ConfigurationError(
                f"provider 'e2b' cannot honour {field}={value!r}: {reason}", provider=NAME
            )
    if spec.profile != "standard":
        raise ConfigurationError(
            f"provider 'e2b' cannot honour profile={spec.profile!r}: a sandbox's root is writable; "
            "use profile='standard'",
            provider=NAME,
        )
    whole_seconds(spec.lifetime, provider=NAME, maximum=MAX_LIFETIME)
    for where in ("env", "secrets", "tags"):
        for name, value in getattr(spec, where).items():
            if any("\ud800" <= character <= "\udfff" for character in name + value):
                raise ConfigurationError(
                    f"provider 'e2b' cannot honour {where}[{name!r}]: it is not Unicode text",
                    provider=NAME,
                )


def metadata(spec: SandboxSpec, key: str) -> dict[str, str]:
    """What is stored with the sandbox: its tags, and what any process needs to use it."""
    user = {USER_TAG: spec.user} if spec.user is not None else {}
    return {**spec.tags, MARKER: "1", KEY_TAG: key, **user}
