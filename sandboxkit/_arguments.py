"""Checks on what callers pass, made before any I/O."""

import math
from collections.abc import Mapping, Sequence

from sandboxkit.errors import ConfigurationError

MAX_ARGUMENT = 131_071  # Linux MAX_ARG_STRLEN, less its NUL
MAX_ARGV = 1_048_576


def argv(value: Sequence[str]) -> tuple[str, ...]:
    """A command as a sequence of strings that execve(2) takes."""
    if isinstance(value, str | bytes):
        raise ConfigurationError(
            f"argv is a list of strings, not the string {value!r}; "
            f"for a shell line use ['sh', '-c', {value!r}]"
        )
    result = tuple(value)
    if not result or result[0] == "":
        raise ConfigurationError(f"argv is empty: {result!r}; give at least a program")
    total = 0
    for item in result:
        if not isinstance(item, str):
            raise ConfigurationError(f"argv holds {item!r}; every argument must be a str")
        if "\0" in item:
            raise ConfigurationError(f"argument {_short(item)} contains a NUL character; remove it")
        size = len(_encode(item, "argument"))
        total += size + 1
        if size > MAX_ARGUMENT or total > MAX_ARGV:
            raise ConfigurationError(
                f"argument {_short(item)} of {size} bytes is over the limit of {MAX_ARGUMENT} "
                f"({MAX_ARGV} in all); pass it through stdin or a file"
            )
    return result


def timeout(value: float | None) -> float | None:
    """Seconds, positive and finite, or None for no limit."""
    return None if value is None else positive("timeout", value, unit="seconds")


def positive(name: str, value: float, *, unit: str = "") -> float:
    """A finite number above zero."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value <= 0:
        remedy = f"a positive number{f' of {unit}' if unit else ''}, or None"
        raise ConfigurationError(f"{name}={value!r} is not valid; use {remedy}")
    return value


def path(value: str, name: str = "path") -> str:
    """An absolute sandbox path without '..'."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigurationError(f"{name}={value!r} is not a path in a sandbox")
    if not value.startswith("/"):
        raise ConfigurationError(
            f"{name}={value!r} is relative; use an absolute path such as '/workspace/{value}'"
        )
    if ".." in value.split("/"):
        raise ConfigurationError(f"{name}={value!r} contains '..'; give the path it leads to")
    _encode(value, name)
    return value


def env(value: Mapping[str, str] | None, name: str = "env") -> dict[str, str]:
    """Environment variables as execve(2) takes them."""
    result = dict(value or {})
    for key, text in result.items():
        if not isinstance(key, str) or not key or "=" in key or "\0" in key:
            raise ConfigurationError(f"{name} has the bad variable name {key!r}")
        if not isinstance(text, str) or "\0" in text:
            raise ConfigurationError(f"{name}[{key!r}] must be a str without NUL characters")
    return result


def _encode(text: str, name: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{name} {_short(text)} cannot be encoded: {error}") from None


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
