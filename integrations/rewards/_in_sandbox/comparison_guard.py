"""Keep a submission's objects from deciding comparisons and `with` blocks. Runs in a sandbox."""

from __future__ import annotations

import opcode
import operator
import os
import types
from collections.abc import Callable
from typing import Any  # Any: values of tests and submissions

_LIBRARY = os.path.dirname(os.path.abspath(os.__file__))
_METHODS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_DEPTH = 50
_MISUSES = (AttributeError, NameError, TypeError)


def is_library(place: str) -> bool:
    """Return whether a source file belongs to Python or to an installed package."""
    return place.startswith((_LIBRARY + os.sep, "<frozen"))


class ComparisonGuard:
    """Evaluates the comparisons and `with` blocks of tests, whose code is in the file `own`.

    The submission's own operators apply only if both operands are its objects, or if `operators`
    names the class. Otherwise `==` is False, `!=` is True, and an ordering raises TypeError.
    """

    def __init__(self, own: str, operators: list[str]) -> None:
        self._own, self._operators = own, operators

    def compare(self, operators: tuple[str, ...], first: Any, *others: Any) -> Any:
        """Return the value of the chained comparison `first OPERATOR other OPERATOR other ...`."""
        result: Any = True
        for name, other in zip(operators, others):  # noqa: B905 - Python 3.8
            result = self._compare(name, first, other)
            if not result:
                break
            first = other
        return result

    def entered(self, manager: Any) -> Any:
        """Return the context manager to enter for `with manager` in the tests.

        It is `manager` itself, unless the submission implements it: then it is a wrapper.
        """
        method: Any = getattr(type(manager), "__exit__", None)
        codes = [getattr(method, "__code__", None)]
        codes.append(getattr(getattr(manager, "gen", None), "gi_code", None))
        places = [each.co_filename for each in codes if each is not None]
        return manager if all(map(self._is_known, places)) else _GuardedContext(manager, self)

    def may_suppress(self, error: BaseException, trace: Any) -> bool:
        """Return whether the submission's `__exit__` may suppress an exception in a `with` block of tests.

        It may not suppress one that its own code raised, nor an AttributeError, NameError or TypeError
        unless a `raise` statement raised it.
        """
        while trace.tb_next is not None:
            if not self._is_known(trace.tb_frame.f_code.co_filename):
                return False
            trace = trace.tb_next
        code = trace.tb_frame.f_code
        if not (self._is_known(code.co_filename) and isinstance(error, Exception)):
            return False
        raised = opcode.opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"
        return raised or not isinstance(error, _MISUSES)

    def _is_known(self, place: str) -> bool:
        return place == self._own or is_library(place)

    def _compare(self, name: str, left: Any, right: Any) -> Any:
        if name in ("in", "not in"):
            plain = type(right) in (list, tuple, set, frozenset, dict)
            if plain and any(self._is_mixed(each, left, "==", 0) for each in right):
                return name == "not in"
            return (left in right) == (name == "in")
        if self._is_mixed(left, right, name, 0):
            if name in ("==", "!="):
                return name == "!="
            raise TypeError(f"{name!r} between an object of the submission and plain data")
        compare: Callable[[Any, Any], Any] = getattr(operator, _METHODS[name])
        return compare(left, right)

    def _is_mixed(self, left: Any, right: Any, name: str, depth: int) -> bool:
        """Return whether an operator of the submission would compare its object with other data."""
        ours = self._is_foreign(left, name), self._is_foreign(right, name)
        if any(ours):
            return not all(ours)
        kinds = {type(left), type(right)}
        if depth == _DEPTH or not kinds <= {list, tuple, dict, set, frozenset}:
            return False
        if kinds <= {list, tuple}:
            pairs = zip(left, right)  # noqa: B905 - Python 3.8
            return any(self._is_mixed(a, b, name, depth + 1) for a, b in pairs)
        found = [any(self._is_foreign(each, "==") for each in side) for side in (left, right)]
        if any(found) or kinds != {dict}:
            return not all(found) and any(found)
        return any(
            self._is_mixed(value, right[key], name, depth + 1)
            for key, value in left.items()
            if key in right
        )

    def _is_foreign(self, value: Any, name: str) -> bool:
        kind = type(value)
        method = f"__{_METHODS[name]}__"
        owner = next(each for each in type.mro(kind) if method in vars(each))
        if owner is object and name == "!=":
            return self._is_foreign(value, "==")
        function = vars(owner)[method]
        if isinstance(function, types.WrapperDescriptorType):
            return False
        place = getattr(getattr(function, "__code__", None), "co_filename", "")
        return not self._is_known(place) and kind.__name__ not in self._operators


class _GuardedContext:
    """A wrapper around the submission's context manager; it suppresses only permitted exceptions."""

    def __init__(self, manager: Any, guard: ComparisonGuard) -> None:
        self._manager, self._guard = manager, guard

    def __enter__(self) -> Any:
        return type(self._manager).__enter__(self._manager)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        swallowed = type(self._manager).__exit__(self._manager, kind, error, trace)
        return bool(swallowed) and error is not None and self._guard.may_suppress(error, trace)
