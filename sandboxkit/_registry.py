"""Providers by name: found through the entry points of installed packages."""

import os
import sys
from typing import TYPE_CHECKING

from sandboxkit.errors import ConfigurationError
from sandboxkit.provider import Provider

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_GROUP = "sandboxkit.providers"


def default_name() -> str:
    """SANDBOXKIT_PROVIDER, else local on Linux and docker elsewhere."""
    return os.environ.get("SANDBOXKIT_PROVIDER") or (
        "local" if sys.platform == "linux" else "docker"
    )


def names() -> list[str]:
    """The names of all installed providers, sorted."""
    return sorted(_entries())


def load(name: str | None = None) -> Provider:
    """Make the provider called `name`, or the default one.

    Raises ConfigurationError for an unknown name and for a missing optional dependency.
    """
    name = name or default_name()
    entry = _entries().get(name)
    if entry is None:
        raise ConfigurationError(
            f"unknown provider {name!r}; installed are {', '.join(names())} "
            "(set provider= or SANDBOXKIT_PROVIDER to one of them)"
        )
    try:
        provider_class = entry.load()
    except ImportError as error:
        raise ConfigurationError(
            f"provider {name!r} needs the package {error.name!r}: "
            f"install sandboxkit with its extra [{name}]"
        ) from error
    provider: Provider = provider_class()
    return provider


def _entries() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points  # costs a tenth of the whole import

    return {entry.name: entry for entry in entry_points(group=_GROUP)}
