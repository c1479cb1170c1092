"""Proxies for objects that stay in the submission's sandbox. Runs in the judge's sandbox.

Functions, modules, iterators, classes and live objects can change, so each use is a request to the
submission. The result of an equal request is cached until a request that may change something.

The submission never evaluates an operator between its object and plain data, because the plain data
may be an expected value. The operator applies to the object's plain value; without one it raises
TypeError. If the result is again an object, it has no plain value.
"""

from __future__ import annotations

import functools
import opcode
import operator
import types
from collections.abc import Iterator
from typing import Any  # Any: values of tests and submissions

_TEXT = 500
BINARY: dict[str, Any] = {
    each.__name__.strip("_"): each
    for each in (
        *(operator.add, operator.sub, operator.mul, operator.matmul, operator.truediv),
        *(operator.floordiv, operator.mod, operator.pow),
        *(operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor),
    )
}
PLAIN_METHODS = frozenset(
    name
    for kind in (str, bytes, int, float, complex, list, tuple, dict, set)
    for name in dir(kind)
    if not name.startswith("_")
)
"""Methods of plain data; they are never called on an object of the submission."""
_OF_FUNCTIONS = ("__name__", "__qualname__", "__doc__", "__wrapped__", "__annotations__")


class Remote:
    """A proxy for an object of the submission, identified by a number."""

    __slots__ = ("__weakref__", "_classes", "_connection", "_kind", "_number")
    _classes: list[int]
    """Numbers of the object's class and its bases."""
    _connection: Any  # Any: imports this module
    _kind: str
    _number: int

    def __init__(
        self, connection: Any, number: int, kind: str = "", classes: list[int] | None = None
    ) -> None:
        own = (("_connection", connection), ("_number", number), ("_kind", kind))
        for name, value in (*own, ("_classes", classes or [])):
            object.__setattr__(self, name, value)

    @property
    def _id(self) -> tuple[int, str]:
        return self._number, type(self).__name__

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Remote) and self._number == other._number

    def __hash__(self) -> int:
        return int(self._number)

    def _leave(self, kind: type | None, error: BaseException | None, trace: Any) -> bool:
        """Leave a `with` block; return whether the exception is suppressed."""
        swallowed = self._connection.do("exit", self, *_leaving(error))
        return error is not None and bool(swallowed) and _may_swallow(self, error, trace)

    async def _leave_async(
        self, kind: type | None, error: BaseException | None, trace: Any
    ) -> bool:
        """Leave an `async with` block; return whether the exception is suppressed."""
        swallowed = await self._connection.do("aexit", self, *_leaving(error))
        return error is not None and bool(swallowed) and _may_swallow(self, error, trace)


def _leaving(error: BaseException | None) -> tuple[list[str] | None, str]:
    if error is None:
        return None, ""
    return [each.__name__ for each in type(error).__mro__], str(error)[:_TEXT]


def _may_swallow(remote: Remote, error: BaseException, trace: Any) -> bool:
    """Return whether a context manager of the submission may suppress an exception.

    It may suppress one that a `raise` statement directly in the `with` block of the tests raised. It
    may not suppress a failed assertion, or an exception of its own or of a function that the block calls.
    """
    if not remote._connection.is_ordinary(error) or trace.tb_next is not None:
        return False
    code = trace.tb_frame.f_code
    raises = opcode.opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"
    return raises and bool(code.co_filename.startswith("test"))


class Function(Remote):
    """A function of the submission, or a method of an object."""

    __slots__ = ("_called", "_top")

    def _named(self, name: str, top: bool) -> Function:
        """Store the name by which the tests read the function; `top`: as an attribute of a module."""
        object.__setattr__(self, "_called", name)
        object.__setattr__(self, "_top", top)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._connection.call(self, getattr(self, "_called", ""), args, kwargs)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else functools.partial(self, owner)

    def __getattr__(self, name: str) -> Any:
        if name in ("_called", "_top") or (name.startswith("__") and name not in _OF_FUNCTIONS):
            raise AttributeError(name)
        if not getattr(self, "_called", "") and name in PLAIN_METHODS:
            raise AttributeError(f"{name}: a function of the submission is not plain data")
        return self._connection.do("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._connection.do("setattr", self, name, value)

    @property
    def __signature__(self) -> Any:
        return self._connection.signature(self)


class Module(Remote):
    """A module of the submission."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._connection.named(name, self._connection.do("getattr", self, name), top=True)

    def __setattr__(self, name: str, value: Any) -> None:
        self._connection.do("setattr", self, name, value)


class Steps(Remote):
    """An iterator of the submission, which can be consumed once."""

    __slots__ = ("_over", "_stepped")

    @property  # type: ignore[misc]  # typeshed has no read-only one
    def __class__(self) -> Any:  # pyright: ignore  # nor has its
        return types.GeneratorType if self._kind == "generator" else Steps

    def __iter__(self) -> Iterator[Any]:
        if not hasattr(self, "_stepped"):
            object.__setattr__(self, "_stepped", False)
        if getattr(self, "_over", False) and not self._stepped:
            raise TypeError("an iterator of the submission has ended and cannot be iterated again")
        return self

    def __next__(self) -> Any:
        if not hasattr(self, "_stepped"):  # the tests call next(), so they know it is an iterator
            object.__setattr__(self, "_stepped", True)
        if getattr(self, "_over", False):
            raise StopIteration
        try:
            return self._connection.do("next", self)
        except BaseException:
            object.__setattr__(self, "_over", True)
            raise

    def __getattr__(self, name: str) -> Any:
        if name not in ("send", "throw", "close"):
            raise AttributeError(name)
        return functools.partial(self._connection.do, "step", self, name)

    def __aiter__(self) -> Any:
        return self._connection.do("aiter", self)

    def __anext__(self) -> Any:
        return self._connection.do("anext", self)


class Class(Remote):
    """A class of the submission. Only a class in the task's `classes` has readable attributes."""

    __slots__ = ()

    def _own(self, what: str) -> None:
        if not self._connection.is_live(self._classes):
            raise TypeError(
                f"{what}: list the class {self._kind} of the submission in the task's 'classes'"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._connection.call(self, "", args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("__name__", "__qualname__"):
            return self._kind.rpartition(".")[2]
        if name.startswith("__") and name not in ("__doc__", "__members__"):
            raise AttributeError(name)
        self._own(name)
        return self._connection.named(name, self._connection.do("getattr", self, name))

    def __setattr__(self, name: str, value: Any) -> None:
        self._own(name)
        self._connection.do("setattr", self, name, value)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, Remote) and self._number in value._classes

    def __subclasscheck__(self, value: Any) -> bool:
        return isinstance(value, Class) and self._number in value._classes

    def __mro_entries__(self, bases: Any) -> Any:
        raise TypeError(
            f"the tests derive a class from {self._kind} of the submission: this needs the task's "
            "'trust': 'shared'"
        )

    def __iter__(self) -> Iterator[Any]:
        self._own("iter()")
        return iter(self._connection.do("iter", self))

    def __len__(self) -> int:
        self._own("len()")
        return int(self._connection.do("len", self))

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, key: Any) -> Any:
        self._own("[]")
        return self._connection.do("getitem", self, key)

    def __contains__(self, item: Any) -> bool:
        self._own("in")
        return bool(self._connection.do("contains", self, item))

    def __repr__(self) -> str:
        return f"<class {self._kind!r} of the submission>"

    @property
    def __signature__(self) -> Any:
        return self._connection.signature(self)


_kinds: dict[Any, type] = {}


def with_operators(base: type, table: dict[str, Any], special: list[str], kind: str) -> Any:
    """Return a subclass of `base` with the methods of `table` that the object's class has."""
    name = kind.rpartition(".")[2] or base.__name__
    key = (base, name, tuple(special))
    if key not in _kinds:
        own = {f"__{each}__": table[each] for each in special if each in table}
        _kinds[key] = type(name, (base,), {"__slots__": (), "__module__": "submission", **own})
    return _kinds[key]


for _kind in (Function, Class):
    setattr(  # noqa: B010 - the class body already has a docstring
        _kind, "__doc__", property(lambda self: self._connection.do("getattr", self, "__doc__"))
    )
