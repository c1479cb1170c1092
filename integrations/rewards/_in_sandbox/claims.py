"""Runs in a sandbox: what a submission says of its own objects and exceptions."""

from __future__ import annotations

import itertools
import operator
import sys
from typing import Any  # Any: values of every kind

from sandboxkit.integrations.rewards._in_sandbox.encode import encode

TEXT = 500
_MOST_ITEMS = 100_000
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by running code


def raised(phase: str, error: BaseException) -> list[Any]:
    """The answer that an exception is."""
    try:
        text = str(error)[:TEXT]
    except BaseException:  # noqa: BLE001 - the submission's __str__
        text = ""
    try:
        args = [encode(each, _told) for each in error.args]
        state = {name: encode(each, _told) for name, each in vars(error).items()}
    except BaseException:  # noqa: BLE001 - the submission's attributes
        args, state = [], {}
    return ["raised", phase, ancestors(type(error)), text, args, state]


def ancestors(kind: type) -> list[str]:
    """The names of a class of exceptions and what it derives from, builtins as they are."""
    return [
        each.__name__ if each.__module__ == "builtins" else f"{each.__module__}.{each.__name__}"
        for each in kind.__mro__
        if issubclass(each, BaseException)
    ]


def named(kind: type) -> str:
    """The full name of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"[:TEXT]


def of_submission(value: Any) -> bool:
    """Whether an object's class is the submission's, and not the interpreter's or a library's."""
    kind = type(value)
    if not kind.__flags__ & _HEAP_TYPE:
        return False
    return kind.__module__.partition(".")[0] not in getattr(sys, "stdlib_module_names", ())


def plain_form(value: Any) -> list[Any]:
    """The plain value that an object stands for, if its class says how to compare it, in a list.

    At most one, and chosen by its type alone: with several of them it could guess.
    """
    kind: Any = type(value)
    if kind.__eq__ is object.__eq__ or hasattr(kind, "__dataclass_fields__"):
        return []
    for base in (int, float, str, dict, list, tuple, set, frozenset):
        if isinstance(value, base):
            return [encode(value)]
    state = getattr(value, "__dict__", {})
    if hasattr(kind, "__index__"):
        return [encode(operator.index(value))]
    if hasattr(kind, "__float__"):
        return [encode(float(value))]
    if hasattr(kind, "keys") and hasattr(kind, "__getitem__"):
        return [encode({key: value[key] for key in itertools.islice(value.keys(), _MOST_ITEMS)})]
    if hasattr(kind, "__iter__"):
        return [encode(list(itertools.islice(iter(value), _MOST_ITEMS)))]
    return [encode(each) for each in state.values()] if len(state) == 1 else []


def _told(value: Any, depth: int) -> str:
    return repr(value)[:TEXT]
