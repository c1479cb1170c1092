"""Proxies for objects of the submission with a fixed description. Runs in the judge's sandbox.

A proxy evaluates every operation on the one description that was sent with the object, so the object
cannot contradict itself. Only a method call is sent to the submission, which returns a new description.
"""

from __future__ import annotations

import functools
import operator
from typing import Any  # Any: values of tests and submissions

from sandboxkit.integrations.rewards._in_sandbox.decode import decode
from sandboxkit.integrations.rewards._in_sandbox.remote import (
    BINARY,
    PLAIN_METHODS,
    Remote,
    with_operators,
)


class Frozen(Remote):
    """A proxy for an object of the submission that evaluates operations on a fixed description."""

    __slots__ = ("_about", "_known", "_plain", "_state")

    def __init__(self, connection: Any, number: int, kind: str, classes: list[int]) -> None:
        super().__init__(connection, number, kind, classes)
        object.__setattr__(self, "_known", {})

    def _set_description(self, about: dict[str, Any], known: dict[int, Any]) -> None:
        """Replace the description; `known` has the other objects of the same response, by number.

        Raises TypeError or KeyError for a malformed description.
        """
        state, own, text = about["state"], about["own"], about.get("text", [None, None])
        if not isinstance(state, dict) or not set(own) <= set(state) or len(text) != 2:
            raise TypeError("not a description")
        if not all(isinstance(about[name], bool) for name in ("compares", "hashable")):
            raise TypeError("not a description")
        for name, value in (("_about", about), ("_known", known), ("_state", {})):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_plain", ())

    def _read(self, wire: Any) -> Any:
        return decode(wire, functools.partial(self._connection.reference, known=self._known))

    def _value(self, what: str) -> Any:
        """Return the object's plain value. Raises TypeError, which names `what`, if it has none."""
        if not self._plain:
            if "plain" not in self._about:
                raise TypeError(f"{what}: a {self._kind} of the submission has no plain value")
            object.__setattr__(self, "_plain", (self._read(self._about["plain"]),))
        return self._plain[0]

    def _attributes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._about["own"]}

    def __getattr__(self, name: str) -> Any:
        if name == "__dict__":
            return self._attributes()
        if name in self._about["state"]:
            if name not in self._state:
                self._state[name] = self._read(self._about["state"][name])
            return self._state[name]
        if "plain" in self._about and hasattr(type(self._value(name)), name):
            return getattr(self._value(name), name)
        if name.startswith("__") or name in PLAIN_METHODS:
            raise AttributeError(
                f"{name}: list the class {self._kind} of the submission in the task's 'classes', "
                "for the tests to call its methods of this name"
            )
        self._connection.require_method(self, name)
        return functools.partial(self._connection.method, self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"{name}: list the class {self._kind} of the submission in the task's 'classes', for "
            "the tests to change its objects"
        )

    def __str__(self) -> str:
        return self._text(0, str)

    def __repr__(self) -> str:
        return self._text(1, repr)

    def __format__(self, form: str) -> str:
        return format(self._value("format()") if "text" not in self._about else str(self), form)

    def _text(self, place: int, how: Any) -> str:
        if "text" in self._about:
            text = self._about["text"][place]
            return f"<{self._kind} object of the submission>" if text is None else str(text)
        return str(how(self._value("text")))

    def __eq__(self, other: Any) -> bool:
        if isinstance(other, Remote):
            return same(self, other)
        if not self._about["compares"] or "plain" not in self._about:
            return False
        plain = self._value("==")
        if isinstance(plain, list) and isinstance(other, (tuple, set, frozenset)):
            plain = type(other)(plain)
        return bool(plain == other)

    def __hash__(self) -> int:
        if not self._about["hashable"]:
            raise TypeError(f"unhashable type: {self._kind}")
        if "plain" in self._about and "fields" not in self._about:
            try:
                return hash(self._value("hash()"))
            except TypeError:
                pass
        return hash(self._kind)

    def _sort_key(self, what: str) -> Any:
        """Return the value that `<` and sorting compare; a TypeError without one names the operation."""
        if self._about.get("ordered"):
            return tuple(getattr(self, name) for name in self._about["fields"])
        return self._value(what)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def same(left: Any, right: Any, seen: frozenset[tuple[int, int]] = frozenset()) -> bool:
    """Return whether two objects of the submission have equal descriptions.

    Their own `__eq__` is not called: it could return True for everything. `seen` has the pairs that are
    being compared already, for objects that contain each other.
    """
    if left is right or left._number == right._number:
        return True
    if not isinstance(left, Frozen) or not isinstance(right, Frozen):
        return False
    one, two = left._about, right._about
    pair = (left._number, right._number)
    if pair in seen:
        return True
    if "plain" in one and "plain" in two and "fields" not in one:
        return bool(left._value("==") == right._value("=="))
    names = one.get("fields") or sorted(one["state"])
    if names != (two.get("fields") or sorted(two["state"])):
        return False
    if left._classes[:1] != right._classes[:1]:
        return False
    if "fields" not in one and one["text"] != two["text"]:
        return False
    if not names and one["text"] == [None, None]:
        return False  # neither has attributes or a text to compare
    return all(_alike(getattr(left, n), getattr(right, n), seen | {pair}) for n in names)


def _alike(left: Any, right: Any, seen: frozenset[tuple[int, int]]) -> bool:
    if isinstance(left, Frozen) and isinstance(right, Frozen):
        return same(left, right, seen)
    if isinstance(left, (list, tuple)) and type(left) is type(right):
        return len(left) == len(right) and all(
            _alike(one, two, seen)
            for one, two in zip(left, right)  # noqa: B905 - sandboxes may have an older Python
        )
    return bool(left == right)


def _special(name: str) -> Any:
    function: Any = BINARY.get(name) or getattr(operator, name, None)

    def of_plain(self: Frozen, *args: Any) -> Any:
        others = [each._value(name) if isinstance(each, Frozen) else each for each in args]
        return function(self._value(name), *others)

    def ordered(self: Frozen, other: Any) -> Any:
        against = other._sort_key(name) if isinstance(other, Frozen) else other
        return function(self._sort_key(name), against)

    def reflected(self: Frozen, other: Any) -> Any:
        return BINARY[name[1:]](other, self._value(name))

    if name in ("lt", "le", "gt", "ge"):
        return ordered
    return reflected if name[:1] == "r" and name[1:] in BINARY else of_plain


def _call(self: Frozen, *args: Any, **kwargs: Any) -> Any:
    return self._connection.call(self, "", args, kwargs)


def _enter(self: Frozen) -> Any:
    return self._connection.do("enter", self)


SPECIAL = {
    **{
        name: _special(name)
        for name in (
            *("getitem", "contains", "neg", "pos", "abs", "invert", "index"),
            *("lt", "le", "gt", "ge"),
            *BINARY,
            *(f"r{name}" for name in BINARY),
        )
    },
    "len": lambda self: len(self._value("len()")),
    "iter": lambda self: iter(self._value("iter()")),
    "reversed": lambda self: reversed(self._value("reversed()")),
    "bool": lambda self: bool(self._value("bool()")),
    "int": lambda self: int(self._value("int()")),
    "float": lambda self: float(self._value("float()")),
    "complex": lambda self: complex(self._value("complex()")),
    "round": lambda self, *digits: round(self._value("round()"), *digits),
    "call": _call,
    "enter": _enter,
    "exit": Remote._leave,
    "aenter": lambda self: self._connection.do("aenter", self),
    "aexit": Remote._leave_async,
}
"""Special methods, without underscores. A proxy gets those that the object's class has."""


def frozen(connection: Any, number: int, kind: str, classes: list[int], special: list[str]) -> Any:
    """Return a proxy that has the special methods of the object's class."""
    return with_operators(Frozen, SPECIAL, special, kind)(connection, number, kind, classes)
