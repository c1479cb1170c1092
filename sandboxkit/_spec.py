"""Session and sandbox options: from what callers write to one checked SandboxSpec."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from sandboxkit import _arguments, _tags
from sandboxkit.errors import ConfigurationError
from sandboxkit.types import Network, Profile, SandboxSpec


class SpecOptions(TypedDict, total=False):
    """The fields of `SandboxSpec` as keywords, in the looser types that callers may use."""

    image: str | None
    command: Sequence[str] | None
    env: Mapping[str, str]
    workdir: str | None
    user: str | None
    cpus: float | None
    memory_mb: int | None
    disk_mb: int | None
    pids: int | None
    network: Network
    lifetime: float | None
    tags: _tags.Tags
    files: Mapping[str, bytes | str]
    secrets: Mapping[str, str]
    gpu: str | None
    profile: Profile
    detach: bool


_FIELDS = tuple(field.name for field in dataclasses.fields(SandboxSpec))


# Any: the values are what _CHECKS make of them; SpecOptions types the public signatures.
def build(base: SandboxSpec, options: Mapping[str, Any]) -> SandboxSpec:
    """Put `options` over `base`; tags and env merge, everything else replaces.

    Raises ConfigurationError for an unknown option or a bad value.
    """
    changes: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _FIELDS:
            raise ConfigurationError(
                f"unknown option {name!r}; the options are {', '.join(_FIELDS)}"
            )
        changes[name] = _value(name, value)
    for name in ("tags", "env", "secrets"):
        if name in changes:
            changes[name] = {**getattr(base, name), **changes[name]}
    spec = dataclasses.replace(base, **changes)
    if spec.detach and spec.lifetime is None:
        raise ConfigurationError("detach=True needs a lifetime; nothing else would end the sandbox")
    return spec


def _value(name: str, value: Any) -> Any:
    match name:
        case "tags":
            return _tags.parse(value)
        case "env" | "secrets":
            return _arguments.env(value, name)
        case "command":
            return None if value is None else _arguments.argv(value)
        case "workdir":
            return None if value is None else _arguments.path(value, "workdir")
        case "files":
            return {
                _arguments.path(path, "files"): _content(path, data) for path, data in value.items()
            }
        case "cpus" | "lifetime":
            return None if value is None else _arguments.positive(name, value)
        case "memory_mb" | "disk_mb" | "pids":
            if value is not None and not isinstance(value, int):
                raise ConfigurationError(f"{name}={value!r} is not valid; use a whole number")
            return None if value is None else _arguments.positive(name, value)
        case "network":
            return _one_of(name, value, ("none", "internet"))
        case "profile":
            return _one_of(name, value, ("standard", "strict"))
        case "detach":
            return _one_of(name, value, (True, False))
        case _:
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigurationError(f"{name}={value!r} is not valid; use a non-empty string")
            return value


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise ConfigurationError(f"{name}={value!r} is not valid; use one of {allowed}")
    return value


def _content(path: str, data: bytes | str) -> bytes:
    if isinstance(data, str):
        return data.encode()
    if not isinstance(data, bytes):
        raise ConfigurationError(f"files[{path!r}] must be bytes or str, not {type(data).__name__}")
    return data
