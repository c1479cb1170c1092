"""What of a SandboxSpec E2B can honour, and how it is stored with a sandbox."""

import re

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers._hosted import strict
from sandboxkit.providers._hosted.lifetime import whole_seconds
from sandboxkit.providers.e2b._answers import NAME
from sandboxkit.types import SandboxSpec

__all__ = [
    "KEY_TAG",
    "MARKER",
    "MAX_LIFETIME",
    "UNSUPPORTED",
    "check",
    "check_version",
    "metadata",
]

MAX_LIFETIME = 24 * 3600
"""Seconds of E2B's larger plans; a smaller plan's limit is E2B's to name."""
MARKER = "sandboxkit.e2b"
KEY_TAG = "sandboxkit.create"
UNSUPPORTED = {
    "cpus": "a template has its processors; build one with `e2b template create --cpu-count`",
    "memory_mb": "a template has its memory; build one with `e2b template create --memory-mb`",
    "disk_mb": "a sandbox's disk comes with the account's plan",
    "pids": "E2B does not limit the processes of a sandbox",
    "gpu": "E2B has no GPUs",
}
"""The fields that E2B cannot honour, each with the reason."""
_OLDEST = (0, 5, 2)
"""The first daemon that can end the standard input of a command."""


def check(spec: SandboxSpec) -> None:
    """See `Provider.check`."""
    for field, reason in UNSUPPORTED.items():
        value = getattr(spec, field)
        if value is not None:
            raise ConfigurationError(
                f"provider 'e2b' cannot honour {field}={value!r}: {reason}", provider=NAME
            )
    strict.check(spec, provider=NAME)
    whole_seconds(spec.lifetime, provider=NAME, maximum=MAX_LIFETIME)
    for where in ("env", "secrets", "tags"):
        for name, value in getattr(spec, where).items():
            if any("\ud800" <= character <= "\udfff" for character in name + value):
                raise ConfigurationError(
                    f"provider 'e2b' cannot honour {where}[{name!r}]: it is not Unicode text",
                    provider=NAME,
                )


def check_version(version: str, sandbox_id: str) -> None:
    """Raise ConfigurationError for a sandbox whose daemon is too old.

    One that is not a version is no reason: other servers than E2B's have their own.
    """
    found = re.fullmatch(r"v?([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6}).*", version, re.S)
    if found is not None and tuple(map(int, found.groups())) < _OLDEST:
        raise ConfigurationError(
            f"sandbox {sandbox_id!r} runs envd {version}, and sandboxkit needs "
            f"{'.'.join(map(str, _OLDEST))} or later: build its template again",
            provider=NAME,
            sandbox_id=sandbox_id,
        )


def metadata(spec: SandboxSpec, key: str) -> dict[str, str]:
    """What is stored with the sandbox: its tags, that it is ours, and its creation's key."""
    return {**spec.tags, MARKER: "1", KEY_TAG: key}
