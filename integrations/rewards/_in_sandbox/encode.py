"""Plain data as JSON: how values leave a sandbox.

None, booleans, texts and small integers are themselves; every other value is a list with the type's
name first.
"""

from __future__ import annotations

from typing import Any, Callable  # noqa: UP035 - runs on whatever Python a sandbox has

MAX_DEPTH = 200
SMALL = 1 << 53
"""Integers below it are exact in any reader of JSON."""

# Any: values of every type, and JSON.
Other = Callable[[Any, int], Any]


def opaque(value: Any, depth: int) -> list[Any]:
    """What stands for a value that is no plain data: the name of its type."""
    kind = type(value)
    return ["opaque", f"{kind.__module__}.{kind.__qualname__}"[:200]]


def encode(value: Any, other: Other = opaque, depth: int = 0) -> Any:
    """Write plain data, a subclass as its plain base; `other` writes what is not plain."""
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
