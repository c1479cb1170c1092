"""Compare encoded values from a sandbox with expected ones, without decoding them to Python objects.

A value is JSON, as `_in_sandbox.encode` writes it. If the caller checks `may_equal` first, the time
depends only on the size of the expected value, and not on that of the value from the sandbox.
"""

import cmath
import json
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sandboxkit.integrations.rewards._in_sandbox.encode import MAX_DEPTH

Wire = Any
"""JSON: a plain scalar, or a list whose first item names the type."""

_NUMBERS = ("bool", "int", "float", "complex", "fraction", "decimal")
_ALIKE = {
    "namedtuple": "tuple",
    "frozenset": "set",
    "keys": "set",
    "items": "set",
    "ordered": "dict",
    "counter": "dict",
    "defaultdict": "dict",
    "bytearray": "bytes",
}
"""Types with their own encoding that compare equal to another type."""
_OTHERS = frozenset((
    "array", "datetime", "deque", "iterator", "opaque", "range", "record", "slice", "timedelta", "values",
))  # fmt: skip
"""Types that no expected value has."""
_LENGTHS = {"namedtuple": 4, "defaultdict": 3}
"""The number of parts of an encoded value that has more than its type and its items."""
_SEQUENCES = ("list", "tuple")
_DIGITS = 400
_MOST_TIMES, _SPARE = 4, 1000
"""A value with more than 4 * n + 1000 parts cannot equal an expected value with n parts."""
# Any: nested tuples and text, so that the sandbox has no influence on the hashing.
Canonical = Any


class ForgedJsonError(Exception):
    """Raised for JSON that our program in the sandbox cannot have written: the submission forged it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """When two values count as equal.

    With `strict` the types must be the same; otherwise numbers compare as in Python, where
    1 == 1.0 == True. The tolerances apply to a pair of numbers if one is a float or complex.
    """

    strict: bool = True
    rel_tol: float = 0.0
    abs_tol: float = 0.0
    tuples: int = 0
    """To which depth a tuple equals an expected list; 1: the value itself."""

    def equal(self, observed: Wire, expected: Wire, depth: int = 0) -> bool:
        """Whether the values are equal. Raises ForgedJsonError if `observed` is no valid encoding."""
        seen, wanted = _kind(observed, depth), _kind(expected, depth)
        if (seen, wanted) == ("tuple", "list") and depth < self.tuples:
            seen = wanted
        if wanted in _NUMBERS:
            return seen in _NUMBERS and (
                ((seen == wanted or not self.strict) and _number(observed) == _number(expected))
                or self._near(observed, expected)
            )
        if seen != wanted or seen in _OTHERS:
            return False
        if wanted in _SEQUENCES:
            return self._series(_items(observed), _items(expected), depth + 1)
        if wanted == "set":
            return self._sets(_items(observed), _items(expected), depth + 1)
        if wanted == "dict":
            return self._dicts(_pairs(observed), _pairs(expected), depth + 1)
        return bool(_scalar(observed) == _scalar(expected))

    def _series(self, observed: list[Wire], expected: list[Wire], depth: int) -> bool:
        return len(observed) == len(expected) and all(
            self.equal(left, right, depth) for left, right in zip(observed, expected, strict=True)
        )

    def _sets(self, observed: list[Wire], expected: list[Wire], depth: int) -> bool:
        if len(observed) != len(expected):
            return False
        if self._members(observed, depth) == self._members(expected, depth):
            return True
        return bool(self.rel_tol or self.abs_tol) and self._series(
            sorted(observed, key=_order), sorted(expected, key=_order), depth
        )

    def _members(self, items: list[Wire], depth: int) -> frozenset[Canonical]:
        return frozenset([self._canonical(each, depth) for each in items])

    def _dicts(self, seen: list[Wire], wanted: list[Wire], depth: int) -> bool:
        if len(seen) != len(wanted):
            return False
        values = {self._canonical(key, depth): value for key, value in seen}
        return len(values) == len(wanted) and all(
            (name := self._canonical(key, depth)) in values
            and self.equal(values[name], value, depth)
            for key, value in wanted
        )

    def _near(self, observed: Wire, expected: Wire) -> bool:
        if not (self.rel_tol or self.abs_tol):
            return False
        if not {"float", "complex"} & {_kind(observed, 0), _kind(expected, 0)}:
            return False
        left, right = _complex(observed), _complex(expected)
        if left is None or right is None:
            return False
        close = cmath.isclose(left, right, rel_tol=self.rel_tol, abs_tol=self.abs_tol)
        return close or (cmath.isnan(left) and cmath.isnan(right))

    def _canonical(self, wire: Wire, depth: int) -> Canonical:
        """Return a hashable form; two forms are equal if and only if the values are."""
        kind = _kind(wire, depth)
        if kind in _NUMBERS:
            return (kind if self.strict else "number", _number(wire))
        if kind in _SEQUENCES:
            return (kind, *[self._canonical(each, depth + 1) for each in _items(wire)])
        if kind == "set":
            return (kind, self._members(_items(wire), depth + 1))
        if kind == "dict":
            pairs = [
                (self._canonical(key, depth + 1), self._canonical(value, depth + 1))
                for key, value in _pairs(wire)
            ]
            return (kind, frozenset(pairs))
        return _scalar(wire)


def may_equal(text: bytes, expected: Wire) -> bool:
    """Whether a value's JSON is small enough, relative to the expected value, to be worth parsing."""
    return _parts(text) <= _MOST_TIMES * _parts(json.dumps(expected).encode()) + _SPARE


def _parts(text: bytes) -> int:
    return text.count(b"[") + text.count(b",")


_SCALARS: dict[type, str] = {bool: "bool", int: "int", str: "str", type(None): "none"}


def _kind(wire: Any, depth: int) -> str:
    scalar = _SCALARS.get(type(wire))
    if scalar is not None:
        return scalar
    if not isinstance(wire, list) or not wire or depth > 2 * MAX_DEPTH:
        raise ForgedJsonError("not a value, or one that is nested too deeply")
    kind = wire[0]
    if not isinstance(kind, str):
        raise ForgedJsonError("a value of an unknown type")
    return _ALIKE.get(kind, kind)


def _items(wire: Wire) -> list[Any]:
    if len(wire) != _LENGTHS.get(wire[0], 2) or not isinstance(wire[1], list):
        raise ForgedJsonError("not the items of a value")
    return wire[1]


def _pairs(wire: Wire) -> list[Any]:
    pairs = _items(wire)
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ForgedJsonError("not the pairs of a dict")
    return pairs


def _scalar(wire: Wire) -> Canonical:
    match wire:
        case None:
            return "none"
        case str():
            return ("str", wire)
        case ["bytes" | "bytearray", str(text)]:
            try:
                return ("bytes", bytes.fromhex(text))
            except ValueError as error:
                raise ForgedJsonError("not bytes") from error
        case [str(kind), *_] if kind in _OTHERS:
            return kind
        case _:
            raise ForgedJsonError("a value of an unknown type")


def _number(wire: Wire) -> str:
    """Return a number as text in lowest terms, so that equal numbers of any type have equal texts."""
    try:
        match wire:
            case bool() | int():
                return hex(wire)
            case ["int", str(text)]:
                return hex(int(text, 16))
            case ["float", str(text)]:
                return _float(text)
            case ["complex", str(real), str(imag)]:
                imaginary = _float(imag)
                return _float(real) + ("" if imaginary == "0x0" else f"+{imaginary}j")
            case ["fraction", str(top), str(bottom)]:
                # encode() writes lowest terms only, so any other fraction is forged.
                return _ratio(int(top, 16), int(bottom, 16))
            case ["decimal", str(text)]:
                return _decimal(text)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise ForgedJsonError(f"not a number: {str(wire)[:80]}") from error
    raise ForgedJsonError(f"not a number: {str(wire)[:80]}")


def _float(text: str) -> str:
    value = float.fromhex(text)
    return _ratio(*value.as_integer_ratio()) if math.isfinite(value) else repr(value)


def _decimal(text: str) -> str:
    # A short text can have a huge exponent, so only moderate ones are expanded.
    digits, _, exponent = text.lower().partition("e")
    if len(digits) > _DIGITS or len(exponent) > 4 or abs(int(exponent or "0")) > _DIGITS:
        return f"decimal {text.lower()!r}"
    if digits.lstrip("-").isalpha():
        return digits.lower()
    value = Fraction(text)
    return _ratio(value.numerator, value.denominator)


def _ratio(top: int, bottom: int) -> str:
    return hex(top) if bottom == 1 else f"{hex(top)}/{hex(bottom)}"


def _complex(wire: Wire) -> complex | None:
    """Return a number as complex; None for a bool, a number too large for a float, or a non-number."""
    try:
        match wire:
            case int() if not isinstance(wire, bool):
                return complex(wire)
            case ["int", str(text)]:
                return complex(int(text, 16))
            case ["float", str(text)]:
                return complex(float.fromhex(text))
            case ["complex", str(real), str(imag)]:
                return complex(float.fromhex(real), float.fromhex(imag))
            case _:
                return None
    except OverflowError:
        return None
    except ValueError as error:
        raise ForgedJsonError(f"not a number: {str(wire)[:80]}") from error


def _order(wire: Wire) -> tuple[str, float, float, str]:
    """Return a sort key for set members that puts close numbers next to each other."""
    value = _complex(wire)
    if value is not None:
        return ("", value.real, value.imag, "")
    return (_kind(wire, 0), 0.0, 0.0, str(wire))
