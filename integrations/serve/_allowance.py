"""Decides what clients may ask for: the values that the operator lists, and limits up to the operator's."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations.serve._config import ServiceConfig
from sandboxkit.types import SandboxSpec

_LISTED = ("image", "network", "user", "gpu")
_MOST = {"memory_mb": 2048, "cpus": 2, "disk_mb": 1024, "pids": 256}
"""The most of each limit that a client may ask for, unless the operator's `options` have another value."""
_REFERENCE = re.compile(r"(?:docker://)?[a-z\d][\w.:@-]*(?:/\w[\w.:@-]*)*", re.ASCII)
"""What a pattern may match. It has the form of a registry's image, which no path has."""


# Any: JSON that a client sent.
def check(config: ServiceConfig, wanted: Mapping[str, Any], provider: str) -> None:
    """Raise ConfigurationError for an option that the operator has not allowed, before anything happens.

    `wanted` has options of a sandbox by name; None stands for the service's own value. `provider` is the
    name of the service's backend.
    """
    for name in _LISTED:
        value, listed = wanted.get(name), config.allow.get(name, ())
        own = (config.options.get(name), getattr(SandboxSpec(), name))
        if value in (None, *own, *(each for each in listed if "*" not in each)):
            continue
        if name != "image" or not _matches(str(value), listed, provider):
            _refuse(name, value, f"to list it with --allow-{name}")
    if wanted.get("profile") == "standard" and config.options.get("profile") == "strict":
        _refuse("profile", "standard", "to leave out --profile strict")
    for name, usual in _MOST.items():
        value, most = wanted.get(name), config.options.get(name) or usual
        if isinstance(value, int | float) and not value <= most:
            _refuse(name, value, f"for more than {most:g} with --max-{name.replace('_', '-')}")


def _matches(image: str, patterns: Sequence[str], provider: str) -> bool:
    """Return whether a pattern matches a registry's image; `*` matches neither "/" nor another registry."""
    if not _REFERENCE.fullmatch(image) or ".." in image:
        return False
    if provider == "local" and not image.startswith("docker://"):
        return False  # the local provider would read it as a path
    return any(re.fullmatch(re.escape(each).replace(r"\*", "[^/]*"), image) for each in patterns)


def _refuse(name: str, value: object, remedy: str) -> None:
    raise ConfigurationError(
        f"{name}={repr(value)[:200]} is not allowed: ask the service's operator {remedy}"
    )
