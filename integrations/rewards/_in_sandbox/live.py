"""Proxies for objects of the submission that may change. Runs in the judge's sandbox."""

from __future__ import annotations

import operator
from typing import Any  # Any: values of tests and submissions

from sandboxkit.integrations.rewards._in_sandbox.frozen import Frozen, same
from sandboxkit.integrations.rewards._in_sandbox.remote import (
    BINARY,
    Remote,
    with_operators,
)


class Live(Remote):
    """A proxy for an object of a class that the tests name. It may change, so operations are sent to it."""

    __slots__ = ("_mixed",)

    def _trusted(self) -> bool:
        """Return whether the task lists the class in `operators`."""
        return bool(self._connection.trusts_operators(self))

    def _value(self, what: str) -> Any:
        """Return the object's current plain value. Raises TypeError, which names `what`, if it has none."""
        if getattr(self, "_mixed", False):
            raise TypeError(
                f"{what}: this {self._kind} was made with plain data of the tests: list its class in "
                "the task's 'operators' to trust its value"
            )
        shown: Frozen = self._connection.once("snapshot", self)
        if not shown._about["compares"] and what not in ("index", "float()"):
            raise TypeError(f"{what} between a {self._kind} of the submission and plain data")
        return shown._value(what)

    def __getattr__(self, name: str) -> Any:
        if name == "_mixed" or (name.startswith("__") and name not in ("__dict__", "__doc__")):
            raise AttributeError(name)
        if name == "__dict__":
            return self._connection.do("vars", self)
        return self._connection.named(name, self._connection.once("getattr", self, name))

    def __setattr__(self, name: str, value: Any) -> None:
        self._connection.do("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._connection.do("delattr", self, name)

    def __eq__(self, other: Any) -> bool:
        if self is other:
            return True
        if isinstance(other, Remote) or self._trusted():
            claimed, one, two = self._connection.once("compare", self, other)
            return bool(claimed) and (self._trusted() or same(one, two))
        try:
            plain = self._value("==")
        except TypeError:
            return False
        if isinstance(plain, list) and isinstance(other, (tuple, set, frozenset)):
            plain = type(other)(plain)
        return bool(plain == other)

    def __hash__(self) -> int:
        return hash(self._connection.once("hash", self))

    def __str__(self) -> str:
        return str(self._connection.once("str", self))

    def __repr__(self) -> str:
        return str(self._connection.once("repr", self))

    def __format__(self, form: str) -> str:
        return str(self._connection.once("format", self, form))

    def __deepcopy__(self, memo: Any) -> Any:
        return self._connection.do("deepcopy", self)


def _forwarded(name: str) -> Any:
    """Return a special method without a second operand, which is sent to the submission's object."""

    def alone(self: Live, *args: Any) -> Any:
        if getattr(self, "_mixed", False) and not self._trusted():
            self._value(name)  # raises
        return self._connection.once(name, self, *args)

    return alone


def _between(name: str) -> Any:
    def between(self: Live, other: Any) -> Any:
        return _combined(self, name, self, other)

    return between


def _reflected(name: str) -> Any:
    def reflected(self: Live, other: Any) -> Any:
        return _combined(self, name, other, self)

    return reflected


def _combined(self: Live, name: str, left: Any, right: Any) -> Any:
    """Return the result of a binary operator; one operand may be plain data."""
    result = self._connection.do(name, left, right)
    if self._trusted() or (isinstance(left, Remote) and isinstance(right, Remote)):
        return result
    if isinstance(result, Live):
        object.__setattr__(result, "_mixed", True)
        return result
    sides = [each._value(name) if isinstance(each, Live) else each for each in (left, right)]
    return BINARY[name.replace("i", "", 1) if name not in BINARY else name](*sides)


def _ordered(name: str) -> Any:
    function = getattr(operator, name)

    def ordered(self: Live, other: Any) -> Any:
        if not isinstance(other, Remote) and not self._trusted():
            return function(self._value(name), other)
        answer = self._connection.once(name, self, other)
        if name in ("le", "ge"):
            return answer
        before, after = answer
        if before and after:
            self._connection.tampered(f"two objects, each {name} the other")
        return before

    return ordered


def _call(self: Live, *args: Any, **kwargs: Any) -> Any:
    return self._connection.call(self, "", args, kwargs)


SPECIAL = {
    **{name: _forwarded(name) for name in ("getitem", "setitem", "delitem", "contains")},
    **{name: _forwarded(name) for name in ("neg", "pos", "abs", "invert", "round", "complex")},
    **{
        name: _forwarded(name)
        for name in ("int", "float", "bool", "len", "reversed", "iter", "next")
    },
    **{name: _forwarded(name) for name in ("enter", "aiter", "anext", "aenter")},
    "index": lambda self: operator.index(self._value("index")),
    **{name: _ordered(name) for name in ("lt", "le", "gt", "ge")},
    **{name: _between(name) for name in BINARY},
    **{f"r{name}": _reflected(name) for name in BINARY},
    **{f"i{name}": _between(f"i{name}") for name in BINARY},
    "call": _call,
    "exit": Remote._leave,
    "aexit": Remote._leave_async,
}
"""The special methods that a proxy gets if the object's class has them, without underscores."""


def live(connection: Any, number: int, kind: str, classes: list[int], special: list[str]) -> Any:
    """Return a proxy that has the special methods of the object's class."""
    also = [f"i{name}" for name in special if name in BINARY]
    return with_operators(Live, SPECIAL, [*special, *also], kind)(connection, number, kind, classes)
