"""Values from a sandbox, compared with expected ones without ever becoming Python objects.

A value is nested JSON lists, as `_in_sandbox.evaluate.encode` writes them. What came from a
sandbox is checked strictly; comparing takes time and memory in proportion to its size.
"""

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Wire = list[Any]
"""Any: JSON whose first item names the type."""

_NUMBERS = ("bool", "int", "float", "complex", "fraction", "decimal")
_SEQUENCES = ("list", "tuple", "deque", "range")
_DEPTH = 100
_DIGITS = 400


class Malformed(Exception):
    """Not what the program in the sandbox writes: somebody else wrote it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How equal is equal.

    With `strict`, types must be the same; without, numbers are equal as in Python, where
    1 == 1.0 == True. A tolerance holds for every pair of numbers of which one is a float.
    """

    strict: bool = True
    rel_tol: float = 0.0
    abs_tol: float = 0.0

    def equal(self, observed: Wire, expected: Wire) -> bool:
        """Compare. Raises Malformed if `observed` is no value."""
        seen = self._key(observed, 0)  # also checks the whole of it
        if seen == self._key(expected, 0):
            return True
        return bool(self.rel_tol or self.abs_tol) and self._near(observed, expected)

    def _near(self, observed: Wire, expected: Wire) -> bool:
        """Equal, or equal but for numbers within the tolerance."""
        if "float" in (observed[0], expected[0]):
            left, right = _real(observed), _real(expected)
            if left is None or right is None:
                return False
            close = math.isclose(left, right, rel_tol=self.rel_tol, abs_tol=self.abs_tol)
            return close or (math.isnan(left) and math.isnan(right))
        if observed[0] != expected[0]:
            return self._key(observed, 0) == self._key(expected, 0)
        match observed[0]:
            case "list" | "tuple" | "deque":
                return self._all_near(observed[1], expected[1])
            case "set":
                return self._all_near(
                    sorted(observed[1], key=_order), sorted(expected[1], key=_order)
                )
            case "dict":
                values = {self._key(key, 0): value for key, value in observed[1]}
                wanted = {self._key(key, 0): value for key, value in expected[1]}
                return values.keys() == wanted.keys() and all(
                    self._near(values[key], wanted[key]) for key in values
                )
            case _:
                return self._key(observed, 0) == self._key(expected, 0)

    def _all_near(self, observed: list[Wire], expected: list[Wire]) -> bool:
        return len(observed) == len(expected) and all(map(self._near, observed, expected))

    def _key(self, wire: Wire, depth: int) -> str:
        """A digest that is the same for equal values and for no others."""
        if not isinstance(wire, list) or not wire or depth > _DEPTH:
            raise Malformed("not a value, or one that is nested too deeply")
        match wire:
            case ["none"]:
                return "none"
            case ["str", str(text)]:
                return _digest("str", text)
            case ["bytes", str(text)]:
                return _digest("bytes", _hex_bytes(text))
            case ["datetime", str(kind), str(text)]:
                return _digest("datetime", repr((kind, text)))
            case ["opaque", str(name)]:
                return _digest("opaque", name)
            case [kind, *_] if kind in _NUMBERS:
                return _digest(kind if self.strict else "number", _number(wire))
            case [kind, list(items)] if kind in _SEQUENCES:
                return _digest(kind, ",".join([self._key(each, depth + 1) for each in items]))
            case ["set", list(items)]:
                keys = {self._key(each, depth + 1) for each in items}
                return _digest("set", ",".join(sorted(keys)))
            case ["dict", list(pairs)]:
                return _digest(
                    "dict", ",".join(sorted([self._pair(pair, depth + 1) for pair in pairs]))
                )
            case _:
                raise Malformed("a value of no known type")

    # Any: not checked yet.
    def _pair(self, pair: Any, depth: int) -> str:
        if not isinstance(pair, list) or len(pair) != 2:
            raise Malformed("not a pair of a dict")
        return f"{self._key(pair[0], depth)}:{self._key(pair[1], depth)}"


def _digest(kind: str, content: str) -> str:
    """Of one length whatever it is made of: digests of digests do not grow."""
    return hashlib.blake2b(f"{kind} {content}".encode(errors="surrogatepass")).hexdigest()


def _number(wire: Wire) -> str:
    try:
        match wire:
            case ["bool", bool(value)]:
                return hex(value)
            case ["int", str(text)]:
                return hex(int(text, 16))
            case ["float", str(text)]:
                return _float(text)
            case ["complex", str(real), str(imag)]:
                imaginary = _float(imag)
                return _float(real) + ("" if imaginary == "0x0" else f"+{imaginary}j")
            case ["fraction", str(top), str(bottom)]:
                return _ratio(Fraction(int(top, 16), int(bottom, 16)))
            case ["decimal", str(text)]:
                return _decimal(text)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise Malformed(f"not a number: {str(wire)[:80]}") from error
    raise Malformed(f"not a number: {str(wire)[:80]}")


def _float(text: str) -> str:
    value = float.fromhex(text)
    return _ratio(Fraction(value)) if math.isfinite(value) else repr(value)


def _decimal(text: str) -> str:
    # A long exponent is a short text for a number of any size: only a modest one is made.
    digits, _, exponent = text.lower().partition("e")
    if len(digits) > _DIGITS or len(exponent) > 4 or abs(int(exponent or "0")) > _DIGITS:
        return f"decimal {text.lower()!r}"
    if digits.lstrip("-").isalpha():
        return digits.lower()
    return _ratio(Fraction(text))


def _ratio(value: Fraction) -> str:
    if value.denominator == 1:
        return hex(value.numerator)
    return f"{hex(value.numerator)}/{hex(value.denominator)}"


def _hex_bytes(text: str) -> str:
    try:
        return bytes.fromhex(text).hex()
    except ValueError as error:
        raise Malformed("not bytes") from error


def _real(wire: Wire) -> float | None:
    """A number as a float; None for what is none, and for a bool."""
    try:
        match wire:
            case ["int", str(text)]:
                return float(int(text, 16))
            case ["float", str(text)]:
                return float.fromhex(text)
            case _:
                return None
    except OverflowError:
        return None


def _order(wire: Wire) -> tuple[str, float, str]:
    """An order of a set's members in which numbers that are close are neighbours."""
    real = _real(wire)
    return ("", real, "") if real is not None else (str(wire[0]), 0.0, str(wire[1:]))
