"""What `profile="strict"` is in a sandbox that has one machine or container to itself.

No vendor mounts a root read-only. Where we are root in the sandbox, its commands are of a user whom
nothing belongs to, and before the first of them all write permission that anybody has is taken away,
folders apart that are everybody's by a sticky bit, such as /tmp.
"""

from sandboxkit.errors import ConfigurationError
from sandboxkit.types import SandboxSpec

__all__ = ["USER", "check"]

USER = "65534:65534"
"""Whom commands of a strict sandbox run as that names nobody."""


def check(spec: SandboxSpec, *, provider: str) -> None:
    """Raise ConfigurationError for what does not go with a strict profile."""
    if spec.profile != "strict":
        return
    name = (spec.user or "").partition(":")[0]
    if name == "root" or (name.isdigit() and int(name) == 0):
        raise ConfigurationError(
            f"provider {provider!r} cannot honour user={spec.user!r}: profile='strict' runs "
            "nothing as root",
            provider=provider,
        )
    if spec.workdir == "/":
        raise ConfigurationError(
            f"provider {provider!r} cannot honour workdir='/': profile='strict' lets nothing write "
            "there",
            provider=provider,
        )
