"""Decode Python values from the JSON of a task's `cases`, and write them as Python source.

A JSON object with exactly one of these keys is a value of that type; any other object is a dict:

    {"__tuple__": [1, 2]}   {"__set__": [1, 2]}   {"__frozenset__": []}   {"__bytes__": "6162"}
    {"__dict__": [[1, "int keys"]]}   {"__float__": "nan"}   {"__complex__": [1, 2]}
    {"__decimal__": "1.10"}   {"__fraction__": [1, 3]}
"""

import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from sandboxkit import ConfigurationError

# Any: values of every type.
_READERS: dict[str, Callable[[Any], Any]] = {
    "__tuple__": lambda items: tuple(read(items)),
    "__set__": lambda items: set(read(items)),
    "__frozenset__": lambda items: frozenset(read(items)),
    "__bytes__": bytes.fromhex,
    "__dict__": lambda pairs: {read(key): read(value) for key, value in pairs},
    "__float__": float,
    "__complex__": lambda parts: complex(*parts),
    "__decimal__": Decimal,
    "__fraction__": lambda parts: Fraction(*parts),
}


def read(value: Any) -> Any:
    """Decode a JSON value of a case. Raises ConfigurationError for invalid content."""
    if isinstance(value, dict):
        if len(value) == 1:
            name, content = next(iter(value.items()))
            if name in _READERS:
                try:
                    return _READERS[name](content)
                except (TypeError, ValueError, ArithmeticError, InvalidOperation) as error:
                    raise ConfigurationError(
                        f"case value {str(value)[:80]} is no {name.strip('_')}: {error}"
                    ) from error
        return {key: read(each) for key, each in value.items()}
    if isinstance(value, list):
        return [read(each) for each in value]
    return value


_DECIMAL_BITS = 10_000
"""The size of the largest number that is written with decimal digits, of which Python reads 4,300."""


def source(value: Any) -> str:
    """Return Python source for plain data. Raises ConfigurationError for any other value."""
    kind = type(value)
    if kind is int and value.bit_length() > _DECIMAL_BITS:
        return hex(value)
    if value is None or kind in (bool, int, str, bytes):
        return repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else f'float("{value!r}")'
    if kind is complex:
        return f"complex({source(value.real)}, {source(value.imag)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{source(k)}: {source(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(source, value))}]"
    if isinstance(value, tuple):
        return f"({''.join(f'{source(each)}, ' for each in value)})"
    if isinstance(value, (set, frozenset)):
        items = f"[{', '.join(map(source, value))}]"
        return f"frozenset({items})" if isinstance(value, frozenset) else f"set({items})"
    if kind is Decimal:
        return f'__import__("decimal").Decimal("{value}")'
    if kind is Fraction:
        return f'__import__("fractions").Fraction({source(value.numerator)}, {source(value.denominator)})'
    raise ConfigurationError(f"argument {str(value)[:80]} is not plain data")
