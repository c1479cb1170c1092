"""Encode less common plain data and subclasses; as a separate module this does not slow down startup."""

from __future__ import annotations

import collections
from typing import Any, Callable  # noqa: UP035 - runs on whatever Python a sandbox has

# Any: values of every type, and JSON.
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
_MAPPINGS: dict[Any, str] = {
    collections.OrderedDict: "ordered",
    collections.Counter: "counter",
    dict: "dict",
}


def encode_rare(
    value: Any, other: Callable[[Any, int], Any], depth: int, encode: Callable[..., Any]
) -> Any:
    """Encode a value that `encode` does not handle itself; call `encode` for its parts."""
    if isinstance(value, int):
        return encode(int.__index__(value))
    if isinstance(value, float):
        return ["float", float.hex(value)]
    if isinstance(value, str):
        return str.__str__(value)
    for kind, name in _MAPPINGS.items():
        if isinstance(value, kind):
            items = dict.items(value)  # not the class's own items(), which may differ
            return [
                name,
                [[encode(k, other, depth + 1), encode(v, other, depth + 1)] for k, v in items],
            ]
    fields: Any = getattr(type(value), "_fields", None)
    if isinstance(value, tuple) and _are_names(fields):
        parts = [encode(item, other, depth + 1) for item in tuple.__iter__(value)]
        return ["namedtuple", parts, type(value).__name__, list(fields)]
    for series, name in _SERIES.items():
        if isinstance(value, series):
            return [name, [encode(item, other, depth + 1) for item in series.__iter__(value)]]
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
    scalar: Any = value
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return encode(scalar.item(), other, depth + 1)
    # Classes are compared by name, so that their modules need not be imported.
    for each in type(value).__mro__:
        write = _BY_NAME.get((each.__module__, each.__name__))
        if write is not None:
            return write(value)
    return other(value, depth)


def _are_names(fields: Any) -> bool:
    """Return whether a value can be the `_fields` of a named tuple."""
    return isinstance(fields, tuple) and all(type(each) is str for each in fields)


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
