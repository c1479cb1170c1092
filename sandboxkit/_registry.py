"""Lookup of providers by name, through the entry points of installed packages."""

import functools
import os
import sys
from typing import TYPE_CHECKING

from sandboxkit import _distribution
from sandboxkit._calls import _arguments
from sandboxkit._calls._foreign_names import nearest, replacement
from sandboxkit.errors import ConfigurationError, MissingExtraError
from sandboxkit.provider import Provider

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_GROUP = "sandboxkit.providers"


def default_name() -> str:
    """Return $SANDBOXKIT_PROVIDER, or else "local" on Linux and "docker" elsewhere."""
    return os.environ.get("SANDBOXKIT_PROVIDER") or (
        "local" if sys.platform == "linux" else "docker"
    )


def named(name: str) -> str:
    """Return `name`; raise ConfigurationError if it is not a non-empty string."""
    if not isinstance(name, str) or not name:
        remedy = "a provider's name such as 'local', a Provider object, or None for the default"
        if isinstance(name, type) and issubclass(name, Provider):
            remedy = f"an object of the class, as {name.__name__}()"
        _arguments.refuse("provider", name, remedy)
    return name


def names() -> list[str]:
    """Return the names of all installed providers, sorted."""
    return sorted(_entries())


def load(name: str | None = None) -> Provider:
    """Create the provider called `name`, or the default one. An http(s) URL selects the provider
    "service" at that URL.

    Raises ConfigurationError for an unknown name, MissingExtraError if a package is missing.
    """
    name = default_name() if name is None else named(name)
    url = name if _is_url(name) else ""
    name = "service" if url else name
    entry = _entry(name)
    try:
        provider_class = entry.load()
    except ImportError as error:
        ours = entry.dist is not None and entry.dist.name == _distribution.NAME
        remedy = _distribution.install(name) if ours else "install it"
        raise MissingExtraError(
            f"provider {name!r} needs the package {error.name!r}: {remedy}"
        ) from error
    provider: Provider = provider_class(url) if url else provider_class()
    return provider


def check(provider: str | Provider | None) -> None:
    """Raise ConfigurationError if there is no such provider; nothing is imported."""
    if not isinstance(provider, Provider):
        name = default_name() if provider is None else named(provider)
        _entry("service" if _is_url(name) else name)


def _is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def _entry(name: str) -> "EntryPoint":
    if (entry := _entries().get(name)) is not None:
        return entry
    ours = replacement("providers", name)
    hint = f" (use {ours!r})" if ours else nearest(name, names())
    if "/" in name or ":" in name:
        hint = f" (an image is the option image={name!r})"
    raise ConfigurationError(
        f"unknown provider {name!r}{hint}; installed are {', '.join(names())} "
        "(set provider= or SANDBOXKIT_PROVIDER to one of them)"
    )


@functools.cache  # the search takes 30 ms if many packages are installed
def _entries() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points  # lazy: a tenth of the whole import time

    return {entry.name: entry for entry in entry_points(group=_GROUP)}
