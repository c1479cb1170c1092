"""Describe the submission's objects and exceptions for the tests. Runs in a sandbox."""

from __future__ import annotations

import itertools
import operator
import sys
from typing import Any  # Any: values of every kind

from sandboxkit.integrations.rewards._in_sandbox.encode import Other, encode, opaque

TEXT = 500
MOST_ITEMS = 100_000
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by running code
_MOST_CAUSES = 5
RAISED_BY_TESTS = "_raised_by_tests"
"""The attribute that holds the number of an exception raised by a callback of the tests."""


def raised(phase: str, error: BaseException) -> list[Any]:
    """Return the response message for an exception raised in `phase` (loading, setup or running)."""
    return ["raised", phase, *_described(error, 0)]


def _described(error: BaseException, depth: int) -> list[Any]:
    """Return an exception's class names, text, arguments, attributes, cause and bases."""

    def other(value: Any, level: int) -> Any:
        if isinstance(value, BaseException) and depth < _MOST_CAUSES:
            return ["error", *_described(value, depth + 1)]
        return repr(value)[:TEXT]

    try:
        text = str(error)[:TEXT]
    except BaseException:  # noqa: BLE001 - the submission's __str__
        text = ""
    try:
        args = [encode(each, other) for each in error.args]
        state = {str(name): encode(each, other) for name, each in vars(error).items()}
    except BaseException:  # noqa: BLE001 - the submission's attributes
        args, state = [], {}
    cause = error.__cause__
    before = None
    if cause is not None and depth < _MOST_CAUSES:
        before = _described(cause, depth + 1)
    names, bases = ancestors(type(error))
    return [names, text, args, state, before, bases]


def ancestors(kind: type) -> tuple[list[str], list[list[int]]]:
    """Return the names of an exception class and its ancestors, and the bases of each.

    Names of builtins have no module. Bases are indices into the list of names.
    """
    mro = [each for each in kind.__mro__ if issubclass(each, BaseException)]
    names = [
        each.__name__ if each.__module__ == "builtins" else f"{each.__module__}.{each.__name__}"
        for each in mro
    ]
    return names, [[mro.index(base) for base in each.__bases__ if base in mro] for each in mro]


def named(kind: type) -> str:
    """Return the qualified name of a class, with its module."""
    return f"{kind.__module__}.{kind.__qualname__}"[:TEXT]


def of_submission(value: Any) -> bool:
    """Return whether an object's class is from the submission, not built in or of the standard library."""
    kind = type(value)
    if not kind.__flags__ & _HEAP_TYPE:
        return False
    return kind.__module__.partition(".")[0] not in getattr(sys, "stdlib_module_names", ())


def is_record(kind: Any) -> bool:
    """Return whether a class is a named tuple without methods of its own."""
    if not isinstance(getattr(kind, "_fields", None), tuple):
        return False
    return not any(callable(each) for name, each in vars(kind).items() if name[:1] != "_")


def compares(kind: Any) -> bool:
    """Return whether a class defines `__eq__` itself; the one that a data class gets does not count."""
    return kind.__eq__ is not object.__eq__ and not hasattr(kind, "__dataclass_fields__")


def plain_form(value: Any) -> list[Any]:
    """Return `plain_value` if the object's class defines its own `__eq__`; otherwise []."""
    return plain_value(value, opaque) if compares(type(value)) else []


def plain_value(value: Any, other: Other) -> list[Any]:
    """Return [encoded plain value] of an object, or [] if it has none.

    The object's class alone decides how the value is read: as its built-in base class, by `__index__`,
    `__float__`, its keys, iteration, or its only attribute. `other` encodes parts that are not plain.
    """
    kind: Any = type(value)
    for base in (int, float, str, dict, list, tuple, set, frozenset):
        if issubclass(kind, base):
            return [encode(value, other)]
    if hasattr(kind, "__index__"):
        return [encode(operator.index(value), other)]
    if hasattr(kind, "__float__"):
        return [encode(float(value), other)]
    if hasattr(kind, "keys") and hasattr(kind, "__getitem__"):
        items = {key: value[key] for key in itertools.islice(value.keys(), MOST_ITEMS)}
        return [encode(items, other)]
    if hasattr(kind, "__iter__"):
        return [encode(list(itertools.islice(iter(value), MOST_ITEMS)), other)]
    state = getattr(value, "__dict__", {})
    if compares(kind) and len(state) == 1:
        return [encode(each, other) for each in state.values()]
    return []
