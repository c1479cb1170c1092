"""Dataclasses from the tables of a TOML file, with the type and the range of each value checked.

The values of a field `Annotated[kind, rule, ...]` are those for which each `rule` of `RULES` holds.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from sandboxkit.errors import ConfigurationError

__all__ = ["MAY_CHANGE", "RULES", "build", "check", "may_change"]

_URL = re.compile(r"https?://[^/?#\s]+")
MAY_CHANGE = "may change"
"""Marks a field that may have another value when a run is continued."""
RULES: Mapping[str, Callable[[Any], bool]] = {
    "0 or more": lambda value: value >= 0,
    "1 or more": lambda value: value >= 1,
    "2 or more": lambda value: value >= 2,
    "a number above 0": lambda value: value > 0,
    "a number above 1": lambda value: value > 1,
    "a share from 0 to 1": lambda value: 0 <= value <= 1,
    "a share above 0, up to 1": lambda value: 0 < value <= 1,
    "two numbers from 0 to below 1": lambda value: (
        len(value) == 2 and all(0 <= v < 1 for v in value)
    ),
    "different URLs such as http://HOST:PORT": lambda value: (
        len(set(value)) == len(value)
        and all(isinstance(url, str) and _URL.fullmatch(url) for url in value)
    ),
    "a folder": bool,
    "a folder or a name": bool,
    "an absolute path in the sandbox": lambda value: not value or value.startswith("/"),
}


def build(kind: type[Any], values: Any, where: str) -> Any:  # Any: TOML values, and the class
    """Return a `kind`, a dataclass, made of a TOML table with the name `where`, "" for the whole file.

    Raises ConfigurationError for an unknown field and for a value of another type or beyond its rule;
    it names the field.
    """
    if not isinstance(values, dict):
        raise ConfigurationError(f"{where}={values!r}: give a table, [{where}]")
    hints = typing.get_type_hints(kind, include_extras=True)
    given = {}
    for key, value in values.items():
        name = f"{where}.{key}" if where else key
        if key not in hints:
            raise ConfigurationError(f"{name}={value!r}: no such field; there are {_list(hints)}")
        given[key] = _checked(hints[key], value, name)
    try:
        return kind(**given)
    except ConfigurationError as error:
        raise ConfigurationError(f"[{where}] {error}" if where else str(error)) from error


def check(section: Any, where: str = "") -> None:
    """Check the fields of a dataclass as `build` does; `where` precedes their names in errors."""
    for name, hint in typing.get_type_hints(type(section), include_extras=True).items():
        _checked(hint, getattr(section, name), f"{where}{name}")


def may_change(kind: type[Any], name: str) -> bool:
    """Whether the field of a dataclass is marked `MAY_CHANGE`."""
    hint = typing.get_type_hints(kind, include_extras=True)[name]
    return MAY_CHANGE in getattr(hint, "__metadata__", ())


def _checked(hint: Any, value: Any, name: str) -> Any:
    rules: tuple[str, ...] = getattr(hint, "__metadata__", ())
    hint = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type[Any], hint), value, name)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):  # X | None
        if value is None:
            return None
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is Literal:
        if value not in typing.get_args(hint):
            raise ConfigurationError(f"{name}={value!r}: use one of {_list(typing.get_args(hint))}")
        return value
    if hint is float and type(value) is int:
        value = float(value)
    if hint is float and type(value) is float and not math.isfinite(value):
        raise ConfigurationError(f"{name}={value!r}: give a finite number")
    wanted = {Mapping: dict, Sequence: list}.get(typing.get_origin(hint) or hint, hint)
    value = list(value) if wanted is list and type(value) is tuple else value
    if type(value) is not wanted:
        raise ConfigurationError(
            f"{name}={value!r} is a {type(value).__name__}: give a {wanted.__name__}"
        )
    for rule in rules:
        if rule in RULES and not RULES[rule](value):
            raise ConfigurationError(f"{name}={value!r}: give {rule}")
    return tuple(value) if wanted is list else value


def _list(names: Iterable[object]) -> str:
    return ", ".join(str(name) for name in names)
