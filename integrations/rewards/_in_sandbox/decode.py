"""Decode plain data from untrusted JSON in the format of `encode`."""

from __future__ import annotations

import collections
import copy
import datetime
import decimal
import fractions
import functools
import types
from typing import Any, Callable  # noqa: UP035 - runs on whatever Python a sandbox has

from sandboxkit.integrations.rewards._in_sandbox.encode import MAX_DEPTH, Other

MAX_DIGITS = 10_000
"""The maximum number of hexadecimal digits of a fraction's numerator or denominator."""


class Malformed(ValueError):
    """Raised for data that `encode` cannot have written."""


def refuse(wire: Any, depth: int) -> Any:
    """Raise Malformed. `decode` uses this by default for types that are not plain data."""
    raise Malformed(f"a value of an unknown type: {str(wire)[:80]}")


def decode(wire: Any, other: Other = refuse, depth: int = 0) -> Any:
    """Return the decoded plain data; `other` decodes every other type. Raises Malformed."""
    if wire is None or isinstance(wire, (bool, int, str)):
        return wire
    if not isinstance(wire, list) or not wire or depth > 2 * MAX_DEPTH:
        raise Malformed("not a value, or one that is nested too deeply")
    kind, reader = wire[0], None
    if isinstance(kind, str):
        reader = _READERS.get(kind)
    if reader is None:
        return other(wire, depth)
    try:
        return reader(wire, other, depth + 1)
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise Malformed(f"not a value: {str(wire)[:80]}") from error


def _items(wire: Any, other: Other, depth: int) -> list[Any]:
    return [decode(each, other, depth) for each in _listed(wire[1])]


def _pairs(wire: Any, other: Other, depth: int) -> list[Any]:
    return [
        (decode(key, other, depth), decode(value, other, depth)) for key, value in _listed(wire[1])
    ]


def _listed(items: Any) -> list[Any]:
    if not isinstance(items, list):
        raise Malformed("not the items of a value")
    return items


class Listed:
    """An iterator over a submission's items. What goes through it a second time finds all items again."""

    def __init__(self, items: list[Any]) -> None:
        self._items, self._at = items, 0

    def __iter__(self) -> Listed:
        return self

    def __next__(self) -> Any:
        if self._at == len(self._items):
            self._at = 0
            raise StopIteration
        self._at += 1
        return self._items[self._at - 1]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Malformed("not a text")
    return value


def fraction(top: str, bottom: str) -> fractions.Fraction:
    """Return the fraction of two hexadecimal numbers. Raises Malformed above `MAX_DIGITS` digits."""
    if len(top) > MAX_DIGITS or len(bottom) > MAX_DIGITS:
        raise Malformed("a fraction with too many digits")
    return fractions.Fraction(int(top, 16), int(bottom, 16))


@functools.lru_cache(maxsize=256)
def _record(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)


_TIMES = {each.__name__: each for each in (datetime.date, datetime.datetime, datetime.time)}

# Any: see above.
_READERS: dict[str, Callable[[Any, Other, int], Any]] = {
    "int": lambda wire, other, depth: int(_text(wire[1]), 16),
    "float": lambda wire, other, depth: float.fromhex(_text(wire[1])),
    "complex": lambda wire, other, depth: complex(float.fromhex(wire[1]), float.fromhex(wire[2])),
    "bytes": lambda wire, other, depth: bytes.fromhex(wire[1]),
    "bytearray": lambda wire, other, depth: bytearray.fromhex(wire[1]),
    "range": lambda wire, other, depth: range(*_items(wire, other, depth)),
    "slice": lambda wire, other, depth: slice(*_items(wire, other, depth)),
    "decimal": lambda wire, other, depth: decimal.Decimal(_text(wire[1])),
    "fraction": lambda wire, other, depth: fraction(wire[1], wire[2]),
    "datetime": lambda wire, other, depth: _TIMES[wire[1]].fromisoformat(wire[2]),
    "timedelta": lambda wire, other, depth: datetime.timedelta(wire[1], wire[2], wire[3]),
    "list": _items,
    "tuple": lambda wire, other, depth: tuple(_items(wire, other, depth)),
    "namedtuple": lambda wire, other, depth: _record(_text(wire[2]), tuple(map(_text, wire[3])))(
        *_items(wire, other, depth)
    ),
    "set": lambda wire, other, depth: set(_items(wire, other, depth)),
    "frozenset": lambda wire, other, depth: frozenset(_items(wire, other, depth)),
    "array": lambda wire, other, depth: decode(wire[1], other, depth),
    "deque": lambda wire, other, depth: collections.deque(
        _items(wire, other, depth), decode(wire[2], other, depth)
    ),
    "iterator": lambda wire, other, depth: Listed(_items(wire, other, depth)),
    "record": lambda wire, other, depth: types.SimpleNamespace(
        **{_text(name): decode(each, other, depth) for name, each in _listed(wire[2])}
    ),
    "keys": lambda wire, other, depth: dict.fromkeys(_items(wire, other, depth)).keys(),
    "items": lambda wire, other, depth: dict(_items(wire, other, depth)).items(),
    "values": lambda wire, other, depth: dict(enumerate(_items(wire, other, depth))).values(),
    "dict": lambda wire, other, depth: dict(_pairs(wire, other, depth)),
    "ordered": lambda wire, other, depth: collections.OrderedDict(_pairs(wire, other, depth)),
    "defaultdict": lambda wire, other, depth: collections.defaultdict(
        functools.partial(copy.deepcopy, decode(wire[2], other, depth)), _pairs(wire, other, depth)
    ),
    "counter": lambda wire, other, depth: collections.Counter(dict(_pairs(wire, other, depth))),
}
