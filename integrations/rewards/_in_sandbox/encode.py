"""Plain data as nested JSON lists, the type's name first: how values leave a sandbox."""

from __future__ import annotations

import collections
from typing import Any, Callable  # noqa: UP035 - runs on whatever Python a sandbox has

MAX_DEPTH = 200

# Any: values of every type, and JSON.
Other = Callable[[Any, int], Any]

_VIEWS: dict[type, str] = {
    type({}.keys()): "keys",
    type({}.items()): "items",
    type({}.values()): "values",
}
_SERIES: dict[Any, str] = {
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    collections.deque: "deque",
}
_MAPPINGS: dict[type, str] = {
    collections.OrderedDict: "ordered",
    collections.Counter: "counter",
    dict: "dict",
}


def opaque(value: Any, depth: int) -> list[Any]:
    """What stands for a value that is no plain data: the name of its type."""
    kind = type(value)
    return ["opaque", f"{kind.__module__}.{kind.__qualname__}"[:200]]


def encode(value: Any, other: Other = opaque, depth: int = 0) -> list[Any]:
    """Write plain data, a subclass as its plain base; `other` writes what is not plain."""
    if depth > MAX_DEPTH:
        return ["opaque", "a value nested too deeply"]
    if value is None:
        return ["none"]
    if isinstance(value, bool):
        return ["bool", bool(value)]
    if isinstance(value, int):
        return ["int", hex(int.__index__(value))]
    if isinstance(value, float):
        return ["float", float.hex(value)]
    if isinstance(value, str):
        return ["str", str.__str__(value)]
    if isinstance(value, dict):
        kind = next(name for each, name in _MAPPINGS.items() if isinstance(value, each))
        items = dict.items(value)
        return [
            kind,
            [[encode(k, other, depth + 1), encode(v, other, depth + 1)] for k, v in items],
        ]
    for each, name in _SERIES.items():
        if isinstance(value, each):
            return [name, [encode(item, other, depth + 1) for item in each.__iter__(value)]]
    return _encode_rare(value, other, depth)


def _encode_rare(value: Any, other: Other, depth: int) -> list[Any]:
    if isinstance(value, complex):
        return ["complex", float.hex(value.real), float.hex(value.imag)]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ["bytearray" if isinstance(value, bytearray) else "bytes", bytes(value).hex()]
    if isinstance(value, range):
        return ["range", [encode(part) for part in (value.start, value.stop, value.step)]]
    if isinstance(value, slice):
        return ["slice", [encode(part) for part in (value.start, value.stop, value.step)]]
    if type(value) in _VIEWS:
        return [_VIEWS[type(value)], [encode(each, other, depth + 1) for each in value]]
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return encode(value.item(), other, depth + 1)
    # Not imported for this: whoever made such a value has the module.
    for each in type(value).__mro__:
        write = _BY_NAME.get((each.__module__, each.__name__))
        if write is not None:
            return list(write(value))
    return list(other(value, depth))


_BY_NAME: dict[tuple[str, str], Callable[[Any], list[Any]]] = {
    ("decimal", "Decimal"): lambda value: ["decimal", str(value)],
    ("fractions", "Fraction"): lambda value: [
        "fraction",
        hex(value.numerator),
        hex(value.denominator),
    ],
    ("datetime", "timedelta"): lambda value: [
        "timedelta",
        value.days,
        value.seconds,
        value.microseconds,
    ],
    ("datetime", "datetime"): lambda value: ["datetime", "datetime", value.isoformat()],
    ("datetime", "date"): lambda value: ["datetime", "date", value.isoformat()],
    ("datetime", "time"): lambda value: ["datetime", "time", value.isoformat()],
}
