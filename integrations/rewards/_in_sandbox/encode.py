"""Encode plain data as JSON; values leave a sandbox in this format.

JSON represents None, booleans, strings and small integers directly. Every other value is a list
that begins with the name of its type.
"""

from __future__ import annotations

from typing import Any, Callable  # noqa: UP035 - runs on whatever Python a sandbox has

MAX_DEPTH = 200
SMALL = 1 << 53
"""All JSON parsers read integers with a smaller absolute value exactly."""

# Any: values of every type, and JSON.
Other = Callable[[Any, int], Any]


def opaque(value: Any, depth: int) -> list[Any]:
    """Encode a value that is not plain data as the name of its type."""
    kind = type(value)
    return ["opaque", f"{kind.__module__}.{kind.__qualname__}"[:200]]


def encode(value: Any, other: Other = opaque, depth: int = 0) -> Any:
    """Encode plain data, and a subclass as its plain base class; `other` encodes every other type."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -SMALL < value < SMALL else ["int", hex(value)]
    if depth > MAX_DEPTH:
        return ["opaque", "a value nested too deeply"]
    if kind is list or kind is tuple:
        return [kind.__name__, [encode(item, other, depth + 1) for item in value]]
    if kind is dict:
        return [
            "dict",
            [[encode(k, other, depth + 1), encode(v, other, depth + 1)] for k, v in value.items()],
        ]
    if kind is float:
        return ["float", value.hex()]
    from sandboxkit.integrations.rewards._in_sandbox.rare import encode_rare

    return encode_rare(value, other, depth, encode)
