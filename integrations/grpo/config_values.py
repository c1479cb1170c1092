"""Dataclasses from the tables of a TOML file, with the type of each value checked."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sandboxkit.errors import ConfigurationError

__all__ = ["build"]


def build(kind: type[Any], values: Any, where: str) -> Any:  # Any: TOML values, and the class
    """Return a `kind`, a dataclass, made of a TOML table with the name `where`, "" for the whole file.

    Raises ConfigurationError for an unknown field and for a value of another type; it names the field.
    """
    if not isinstance(values, dict):
        raise ConfigurationError(f"{where}={values!r}: give a table, [{where}]")
    hints = typing.get_type_hints(kind)
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


def _checked(hint: Any, value: Any, name: str) -> Any:
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type[Any], hint), value, name)
    if origin is Literal:
        if value not in choices:
            raise ConfigurationError(f"{name}={value!r}: use one of {_list(choices)}")
        return value
    if origin in (types.UnionType, typing.Union):  # X | None
        return _checked(choices[0], value, name)
    if hint is float and type(value) is int:
        return float(value)
    if hint is float and type(value) is float and not math.isfinite(value):
        raise ConfigurationError(f"{name}={value!r}: give a finite number")
    wanted = {Mapping: dict, Sequence: list}.get(origin or hint, hint)
    if type(value) is not wanted:
        raise ConfigurationError(
            f"{name}={value!r} is a {type(value).__name__}: give a {wanted.__name__}"
        )
    return tuple(value) if wanted is list else value


def _list(names: typing.Iterable[object]) -> str:
    return ", ".join(str(name) for name in names)
