"""Detects which backends are configured on this machine, without importing their packages."""

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
    "service": ("SANDBOXKIT_SERVICE_URL",),
}
"""The variables and files that each backend's client reads. A backend needs at least one of its own."""


def names() -> list[str]:
    """Return the providers that may work on this machine, and the one that SANDBOXKIT_PROVIDER names. The
    default comes first."""
    found = {name for name in _registry.names() if lacking(name) is None}
    found |= {name for name in [os.environ.get("SANDBOXKIT_PROVIDER")] if name}
    return sorted(found, key=lambda name: (name != _registry.default_name(), name))


def lacking(name: str) -> str | None:
    """Return why a provider obviously cannot work on this machine, else None."""
    if name == "local" and sys.platform != "linux":
        return "it needs Linux"
    signs = _ANY.get(name, ())
    if not signs or any(map(_there, signs)):
        return None
    shown = [sign if "/" in sign else f"${sign}" for sign in signs]
    return f"{shown[0]} is not set" if len(shown) == 1 else f"there is none of {', '.join(shown)}"


def _there(sign: str) -> bool:
    # A socket that this user may not open belongs to another user's daemon.
    if "/" in sign:
        return os.access(Path(sign).expanduser(), os.R_OK)
    return bool(os.environ.get(sign))
