"""Providers by name: found through the entry points of installed packages."""

import functools
import os
import sys
from typing import TYPE_CHECKING

from sandboxkit import _arguments, _distribution
from sandboxkit.errors import ConfigurationError, MissingExtraError
from sandboxkit.provider import Provider

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_GROUP = "sandboxkit.providers"


def default_name() -> str:
    """SANDBOXKIT_PROVIDER, else local on Linux and docker elsewhere."""
    return os.environ.get("SANDBOXKIT_PROVIDER") or (
        "local" if sys.platform == "linux" else "docker"
    )


def named(name: str) -> str:
    """What a caller gives as a provider's name."""
    if not isinstance(name, str) or not name:
        remedy = "a provider's name such as 'local', a Provider object, or None for the default"
        _arguments.refuse("provider", name, remedy)
    return name


def names() -> list[str]:
    """The names of all installed providers, sorted."""
    return sorted(_entries())


def load(name: str | None = None) -> Provider:
    """Make the provider called `name`, or the default one.

    Raises ConfigurationError for an unknown name, MissingExtraError without a package it needs.
    """
    name = default_name() if name is None else named(name)
    entry = _entries().get(name)
    if entry is None:
        raise ConfigurationError(
            f"unknown provider {name!r}; installed are {', '.join(names())} "
            "(set provider= or SANDBOXKIT_PROVIDER to one of them)"
        )
    try:
        provider_class = entry.load()
    except ImportError as error:
        ours = entry.dist is not None and entry.dist.name == _distribution.NAME
        remedy = _distribution.install(name) if ours else "install it"
        raise MissingExtraError(
            f"provider {name!r} needs the package {error.name!r}: {remedy}"
        ) from error
    provider: Provider = provider_class()
    return provider


@functools.cache  # to look for them takes 30 ms where many packages are installed
def _entries() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points  # costs a tenth of the whole import

    return {entry.name: entry for entry in entry_points(group=_GROUP)}
