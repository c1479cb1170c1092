"""Describe an object of the submission once, as immutable data. Runs in a sandbox."""

from __future__ import annotations

import itertools
from typing import Any  # Any: values of every kind

from sandboxkit.integrations.rewards._in_sandbox.claims import (
    MOST_ITEMS,
    compares,
    plain_value,
)
from sandboxkit.integrations.rewards._in_sandbox.encode import Other, encode

OPERATORS = (
    *("len", "iter", "next", "getitem", "setitem", "delitem", "contains", "reversed", "call"),
    *("bool", "float", "int", "complex", "index", "round", "neg", "pos", "abs", "invert"),
    *("eq", "lt", "le", "gt", "ge", "hash", "str", "repr", "format"),
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow"),
    *("lshift", "rshift", "and", "or", "xor"),
    *("radd", "rsub", "rmul", "rmatmul", "rtruediv", "rfloordiv", "rmod", "rpow"),
    *("rlshift", "rrshift", "rand", "ror", "rxor"),
    *("enter", "exit", "aiter", "anext", "aenter", "aexit", "get", "set"),
)
"""The special methods of an object that the tests may use, without underscores."""
_MOST_ATTRIBUTES = 500


def operators(kind: type) -> list[str]:
    """Return the special methods of a class that `object` does not have."""
    return [
        name
        for name in OPERATORS
        if getattr(kind, f"__{name}__", None) is not getattr(object, f"__{name}__", None)
    ]


def describe(value: Any, other: Other) -> dict[str, Any]:
    """Return everything that tests can read from an object without calling its methods.

    `other` encodes values that are not plain data. Parts whose reading raises are left out.
    """
    kind: Any = type(value)
    found: dict[str, Any] = {"compares": compares(kind), "hashable": kind.__hash__ is not None}
    plain = _or_none(lambda: plain_value(value, other))
    if plain:
        found["plain"] = plain[0]
    if not plain or not isinstance(value, (int, float, str)):
        found["text"] = [_or_none(lambda: _text(str, value)), _or_none(lambda: _text(repr, value))]
    found["state"], found["own"] = _attributes(value, other)
    if hasattr(kind, "__dataclass_fields__") and kind.__dataclass_params__.eq:
        fields = kind.__dataclass_fields__.values()
        found["fields"] = [each.name for each in fields if each.compare]
        found["ordered"] = bool(kind.__dataclass_params__.order)
    return found


def _or_none(read: Any) -> Any:
    try:
        return read()
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - raised by the submission's methods
        return None


def _text(how: Any, value: Any) -> str | None:
    kind: Any = type(value)
    if kind.__repr__ is object.__repr__ and (how is repr or kind.__str__ is object.__str__):
        return None  # Python's default text contains a memory address
    return str.__str__(how(value))[:MOST_ITEMS]


def _attributes(value: Any, other: Other) -> tuple[dict[str, Any], list[str]]:
    """Return the encoded data attributes, and the names of those that the object itself holds."""
    own = {str(name): each for name, each in getattr(value, "__dict__", {}).items()}
    shared: dict[str, Any] = {}
    for base in reversed(type(value).__mro__[:-1]):
        for name, each in base.__dict__.items():
            kind = type(each).__name__
            if kind in ("member_descriptor", "property", "cached_property"):
                read = _or_none(lambda: (getattr(value, name),))  # noqa: B023 - called at once
                if read is not None:
                    (own if kind == "member_descriptor" else shared)[name] = read[0]
            elif not name.startswith("__") and not hasattr(type(each), "__get__"):
                shared[name] = each
    every = itertools.islice({**shared, **own}.items(), _MOST_ATTRIBUTES)
    state = {name: encode(each, other) for name, each in every}
    return state, [name for name in own if name in state]
