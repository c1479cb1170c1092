"""Encode values as JSON; they leave a sandbox in this format. Runs in a sandbox, and on the host for expected values.

JSON represents None, booleans, strings and small integers directly. Every other value is a list
that begins with the name of its type.
"""

from __future__ import annotations

import collections
import itertools
import operator
import types
from typing import Any, Callable  # noqa: UP035 - runs on whatever Python a sandbox has

MAX_DEPTH = 200
SMALL = 1 << 53
"""All JSON parsers read integers with a smaller absolute value exactly."""

_TEXT = 500
_LONGEST = 1 << 16
_MOST_ITEMS = 100_000
_ITERATORS: Any = (type(iter(())), type(iter([])), map, filter, zip, enumerate, types.GeneratorType)
_VIEWS: Any = (type({}.keys()), type({}.items()), type({}.values()))
_SERIES: Any = (list, tuple, set, frozenset, collections.deque)
_WRAPPERS: dict[str, Any] = {"UserDict": dict, "UserList": list, "UserString": str}
_MAPPINGS: dict[Any, str] = {
    collections.OrderedDict: "ordered",
    collections.Counter: "counter",
    collections.defaultdict: "defaultdict",
    dict: "dict",
}

# Any: values of every type, and JSON.
Other = Callable[[Any, int], Any]


class TooDeep:
    """Stands for the values below `MAX_DEPTH`."""


def opaque(value: Any, depth: int) -> list[Any]:
    """Encode a value that is not plain data as the name of its type."""
    kind = type(value)
    deep = f"value inside {MAX_DEPTH} others"
    return ["opaque", deep if kind is TooDeep else f"{kind.__module__}.{kind.__qualname__}"[:200]]


def encode(value: Any, other: Other = opaque, depth: int = 0) -> Any:
    """Encode plain data, and a subclass as its plain base class; `other` encodes every other type."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -SMALL < value < SMALL else ["int", hex(value)]
    if depth > MAX_DEPTH:
        return other(TooDeep(), depth)
    return _encode_rare(value, other, depth)


def _encode_rare(value: Any, other: Other, depth: int) -> Any:
    """Encode less common plain data, and subclasses."""
    if isinstance(value, int):
        return encode(int.__index__(value))
    if isinstance(value, float):
        return ["float", float.hex(value)]
    if isinstance(value, str):
        return str.__str__(value)
    for kind, name in _MAPPINGS.items():
        if isinstance(value, kind):
            pairs = [
                [encode(key, other, depth + 1), encode(each, other, depth + 1)]
                for key, each in dict.items(value)  # not the class's own items(), which may differ
            ]
            factory: Any = getattr(value, "default_factory", None)
            if name == "defaultdict" and factory is not None:
                default = factory()
                tree = isinstance(default, collections.defaultdict)  # perhaps without an end
                return [name, pairs, encode(dict(default) if tree else default, other, depth + 1)]
            return ["dict" if name == "defaultdict" else name, pairs]
    fields: Any = getattr(type(value), "_fields", None)
    named = isinstance(fields, tuple) and all(type(each) is str for each in fields)
    if isinstance(value, tuple) and named:
        parts = [encode(item, other, depth + 1) for item in tuple.__iter__(value)]
        return ["namedtuple", parts, type(value).__name__, list(fields)]
    for series in _SERIES:
        if isinstance(value, series):
            items = [encode(item, other, depth + 1) for item in series.__iter__(value)]
            most = [value.maxlen] if isinstance(value, collections.deque) else []
            return [series.__name__, items, *most]
    if isinstance(value, complex):
        return ["complex", float.hex(value.real), float.hex(value.imag)]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ["bytearray" if isinstance(value, bytearray) else "bytes", bytes(value).hex()]
    if isinstance(value, (range, slice)):
        ends = (value.start, value.stop, value.step)
        return [type(value).__name__, [encode(each) for each in ends]]
    if type(value) in _VIEWS:
        return [type(value).__name__[5:], [encode(each, other, depth + 1) for each in value]]
    scalar: Any = value
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return encode(scalar.item(), other, depth + 1)
    # Classes are compared by name, so that their modules need not be imported.
    for each in type(value).__mro__:
        module, name = each.__module__, each.__name__
        if module == "collections" and name in _WRAPPERS:
            return encode(_WRAPPERS[name](value), other, depth)
        if (module, name) == ("decimal", "Decimal"):
            return ["decimal", str(value)]
        if (module, name) == ("fractions", "Fraction"):
            return ["fraction", hex(scalar.numerator), hex(scalar.denominator)]
        if (module, name) == ("datetime", "timedelta"):
            return ["timedelta", scalar.days, scalar.seconds, scalar.microseconds]
        if module == "datetime" and name in ("date", "datetime", "time"):
            return ["datetime", name, scalar.isoformat()]
    return other(value, depth)


def raised(phase: str, error: BaseException) -> list[Any]:
    """Return the response for an exception raised in `phase` (loading, setup or running).

    It has the names of the exception's built-in base classes, its own name, its text, and its arguments.
    """
    built_in = [each for each in type(error).__mro__ if each.__module__ == "builtins"]
    nearest = [
        each for each in built_in if not any(each in other.__mro__[1:] for other in built_in)
    ]
    bases, own = [each.__name__ for each in nearest], type(error).__name__
    try:
        text, args = str(error)[:_TEXT], [encode(each, plain) for each in error.args]
    except BaseException:  # noqa: BLE001 - the submission's __str__
        text, args = "", []
    return ["raised", phase, bases, own[:_TEXT], text, args]


def plain(value: Any, depth: int) -> Any:
    """Encode an object as the plain data that it stands for.

    An iterator is listed. The class alone decides how another object is read: as its built-in base class, by
    `__index__` or `__float__`, its keys, or iteration; a data class by its fields. All else is opaque: its class's name, truth, and texts.
    """
    kind: Any = type(value)
    if isinstance(value, _ITERATORS):
        return ["iterator", [encode(each, plain, depth + 1) for each in _first(value)]]
    if hasattr(kind, "__dataclass_fields__"):
        fields = {name: getattr(value, name) for name in kind.__dataclass_fields__}
        return [
            "record",
            kind.__name__,
            [[k, encode(v, plain, depth + 1)] for k, v in fields.items()],
        ]
    if hasattr(kind, "tolist"):  # arrays and tensors
        return ["array", encode(value.tolist(), opaque, depth + 1)]
    if hasattr(kind, "__index__"):
        return encode(operator.index(value))
    if hasattr(kind, "__float__"):
        return encode(float(value))
    if hasattr(kind, "keys") and hasattr(kind, "__getitem__"):
        return encode({key: value[key] for key in _first(value.keys())}, plain, depth + 1)
    if hasattr(kind, "__iter__"):
        return ["iterator", [encode(each, plain, depth + 1) for each in _first(iter(value))]]
    return [*opaque(value, depth), _looked(bool, value), _looked(str, value), _looked(repr, value)]


def _looked(look: Any, value: Any) -> Any:
    """Return what an object is when it is looked at, or None if that fails."""
    try:
        found = look(value)
    except BaseException:  # noqa: BLE001 - the submission's __str__
        return None
    return found if found is True or found is False else str.__str__(found)[:_LONGEST]


def _first(items: Any) -> Any:
    return itertools.islice(items, _MOST_ITEMS)
