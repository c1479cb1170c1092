"""Which backends this machine is set up for, told without loading their packages."""

import os
import sys
from pathlib import Path

from sandboxkit import _registry

_ANY = {
    "daytona": ("DAYTONA_API_KEY", "DAYTONA_JWT_TOKEN"),
    "docker": ("DOCKER_HOST", "DOCKER_CONTEXT", "/var/run/docker.sock", "~/.docker/contexts"),
    "e2b": ("E2B_API_KEY",),
    "kubernetes": ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "~/.kube/config"),
    "modal": ("MODAL_TOKEN_ID", "MODAL_CONFIG_PATH", "~/.modal.toml"),
}
"""What its own package looks for, variables and files: without all of them it cannot work."""


def names() -> list[str]:
    """The providers that may work here and the one of SANDBOXKIT_PROVIDER; the default comes first."""
    found = {name for name in _registry.names() if lacking(name) is None}
    found |= {name for name in [os.environ.get("SANDBOXKIT_PROVIDER")] if name}
    return sorted(found, key=lambda name: (name != _registry.default_name(), name))


def lacking(name: str) -> str | None:
    """Why a provider cannot work here, where that is plain to see; else None."""
    if name == "local" and sys.platform != "linux":
        return "it needs Linux"
    signs = _ANY.get(name, ())
    if not signs or any(map(_there, signs)):
        return None
    said = [sign if "/" in sign else f"${sign}" for sign in signs]
    return f"{said[0]} is not set" if len(said) == 1 else f"there is none of {', '.join(said)}"


def _there(sign: str) -> bool:
    # A daemon's socket that this user may not open is no daemon of theirs.
    if "/" in sign:
        return os.access(Path(sign).expanduser(), os.R_OK)
    return bool(os.environ.get(sign))
