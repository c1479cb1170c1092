"""Values from a sandbox, compared with expected ones without ever becoming Python objects.

A value is JSON, as `_in_sandbox.encode` writes it. What came from a sandbox costs time in proportion
to the expected value, however large it is itself, if `may_equal` is asked first.
"""

import cmath
import json
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sandboxkit.integrations.rewards._in_sandbox.encode import MAX_DEPTH

Wire = Any
"""JSON: a scalar that is itself, or a list whose first item names the type."""

_NUMBERS = ("bool", "int", "float", "complex", "fraction", "decimal")
_ALIKE = {
    "frozenset": "set",
    "keys": "set",
    "items": "set",
    "ordered": "dict",
    "counter": "dict",
    "bytearray": "bytes",
}
"""Types that are equal to others, and travel apart."""
_SEQUENCES = ("list", "tuple", "deque", "range")
_COERCED = ("list", "tuple", "deque", "set")
_DIGITS = 400
_MOST_TIMES, _SPARE = 4, 1000
"""A value with more parts than so many times the expected one's, and some, is not equal to it."""
# Any: what canonical values are made of: texts and tuples, so that hashing is not the sandbox's.
Canonical = Any


class Malformed(Exception):
    """Not what the program in the sandbox writes: somebody else wrote it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How equal is equal.

    With `strict`, types must be the same; without, numbers are equal as in Python, where
    1 == 1.0 == True. A tolerance holds for every pair of numbers of which one is a float or complex.
    """

    strict: bool = True
    rel_tol: float = 0.0
    abs_tol: float = 0.0

    def equal(self, observed: Wire, expected: Wire) -> bool:
        """Compare. Raises Malformed where `observed` is no value."""
        return self._equal(observed, expected, 0)

    def _equal(self, observed: Wire, expected: Wire, depth: int) -> bool:
        seen, wanted = _kind(observed, depth), _kind(expected, depth)
        if seen == "object" and not self.strict:
            return self._stands_for(observed, expected, depth)
        if wanted in _NUMBERS:
            return seen in _NUMBERS and (
                ((seen == wanted or not self.strict) and _number(observed) == _number(expected))
                or self._near(observed, expected)
            )
        if seen != wanted:
            return False
        if wanted in _SEQUENCES:
            return self._series(_items(observed), _items(expected), depth + 1)
        if wanted == "set":
            return self._sets(_items(observed), _items(expected), depth + 1)
        if wanted == "dict":
            return self._dicts(observed, expected, depth + 1)
        return bool(_scalar(observed) == _scalar(expected))

    def _stands_for(self, observed: Wire, expected: Wire, depth: int) -> bool:
        """An object as the plain value that it claims to be; its items in a container of any kind."""
        match observed:
            case ["object", str(), [form]]:
                wanted = _kind(expected, depth)
                if _kind(form, depth) in _COERCED and wanted in _COERCED:
                    form = [wanted, *form[1:]]
                return self._equal(form, expected, depth + 1)
            case ["object", str(), []]:
                return False
            case _:
                raise Malformed("an object of no known form")

    def _series(self, observed: list[Wire], expected: list[Wire], depth: int) -> bool:
        return len(observed) == len(expected) and all(
            self._equal(left, right, depth) for left, right in zip(observed, expected, strict=True)
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

    def _dicts(self, observed: Wire, expected: Wire, depth: int) -> bool:
        seen, wanted = _pairs(observed), _pairs(expected)
        if len(seen) != len(wanted):
            return False
        if observed[0] == expected[0] == "ordered":
            return self._series(
                [each for pair in seen for each in pair],
                [each for pair in wanted for each in pair],
                depth,
            )
        values = {self._canonical(key, depth): value for key, value in seen}
        return len(values) == len(wanted) and all(
            (name := self._canonical(key, depth)) in values
            and self._equal(values[name], value, depth)
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
        """The same for equal values and for no others."""
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
    """Whether a value's JSON has not many times the parts of the expected one's: worth reading."""
    return _parts(text) <= _MOST_TIMES * _parts(json.dumps(expected).encode()) + _SPARE


def _parts(text: bytes) -> int:
    return text.count(b"[") + text.count(b",")


_SCALARS: dict[type, str] = {bool: "bool", int: "int", str: "str", type(None): "none"}


def _kind(wire: Any, depth: int) -> str:
    scalar = _SCALARS.get(type(wire))
    if scalar is not None:
        return scalar
    if not isinstance(wire, list) or not wire or depth > 2 * MAX_DEPTH:
        raise Malformed("not a value, or one that is nested too deeply")
    kind = wire[0]
    if not isinstance(kind, str):
        raise Malformed("a value of no known type")
    return _ALIKE.get(kind, kind)


def _items(wire: Wire) -> list[Any]:
    if len(wire) != 2 or not isinstance(wire[1], list):
        raise Malformed("not the items of a value")
    return wire[1]


def _pairs(wire: Wire) -> list[Any]:
    pairs = _items(wire)
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise Malformed("not the pairs of a dict")
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
                raise Malformed("not bytes") from error
        case ["datetime", str(kind), str(text)]:
            return ("datetime", kind, text)
        case ["timedelta", int(days), int(seconds), int(microseconds)]:
            return ("timedelta", days, seconds, microseconds)
        case ["opaque", str(name)] | ["object", str(name), _]:
            return ("opaque", name)
        case ["values" | "slice", list()]:
            return ("opaque", wire[0])
        case _:
            raise Malformed("a value of no known type")


def _number(wire: Wire) -> str:
    """The number in lowest terms, however it was written."""
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
                # Fractions are in lowest terms; one that is not was not written by encode().
                return _ratio(int(top, 16), int(bottom, 16))
            case ["decimal", str(text)]:
                return _decimal(text)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise Malformed(f"not a number: {str(wire)[:80]}") from error
    raise Malformed(f"not a number: {str(wire)[:80]}")


def _float(text: str) -> str:
    value = float.fromhex(text)
    return _ratio(*value.as_integer_ratio()) if math.isfinite(value) else repr(value)


def _decimal(text: str) -> str:
    # A long exponent is a short text for a number of any size: only a modest one is made.
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
    """A number as a complex one; None for what is none, for a bool, and for one too large."""
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
        raise Malformed(f"not a number: {str(wire)[:80]}") from error


def _order(wire: Wire) -> tuple[str, float, float, str]:
    """An order of a set's members in which numbers that are close are neighbours."""
    value = _complex(wire)
    if value is not None:
        return ("", value.real, value.imag, "")
    return (_kind(wire, 0), 0.0, 0.0, str(wire))


# Any: whatever JSON there is.
def shown(value: Any) -> str:
    """Text of unknown origin, on one line, without control characters."""
    return ascii(str(value)[:200])[1:-1]
