"""Objects of the tests that the submission received and may use. Runs in the judge's sandbox."""

from __future__ import annotations

import collections
import importlib
import io
import operator
import sys
import types
from collections.abc import Iterator
from typing import Any  # Any: values of tests and submissions

from sandboxkit.integrations.rewards._in_sandbox.decode import Malformed
from sandboxkit.integrations.rewards._in_sandbox.encode import encode
from sandboxkit.integrations.rewards._in_sandbox.exceptions import Exceptions
from sandboxkit.integrations.rewards._in_sandbox.remote import Remote
from sandboxkit.integrations.rewards._in_sandbox.snapshot import operators

_FILES = (io.StringIO, io.BytesIO)
_OF_TESTS = ("tests", "judge")
_MOCKS = "unittest.mock"


class SharedValues:
    """The functions and objects of the tests that the submission received, by number."""

    def __init__(self, connection: Any) -> None:
        self.values: list[Any] = []
        self._connection = connection
        self._numbers: dict[int, int] = {}

    def encode(self, value: Any, exceptions: Exceptions) -> Any:
        """Encode a value for the submission; objects that are not plain data become numbers."""

        def other(each: Any, depth: int) -> Any:
            if isinstance(each, Remote):
                return ["handle", each._number]
            if isinstance(each, type):
                number = exceptions.number(each)
                if number is not None:
                    return ["handle", number]
            if isinstance(each, (type, types.BuiltinFunctionType, types.MethodDescriptorType)):
                named = _importable(each)
                if named is not None:
                    return ["named", *named]
            number = self._numbers.setdefault(id(each), len(self.values))
            if number == len(self.values):
                self.values.append(each)
            name = getattr(each, "__name__", "")
            doc = each.__doc__ if isinstance(each, types.FunctionType) else None
            return ["callback", number, name if isinstance(name, str) else "", _special(each), doc]

        return encode(value, other)

    def do(self, number: int, what: str, args: Any, kwargs: Any, writable: bool) -> Any:
        """Apply the submission's operation `what` to the object `number` and return the result.

        A negative `number` is the tests' stdin. Without `writable`, setting an attribute has no effect.
        Raises AttributeError for an operation or attribute that the submission may not use.
        """
        if number < 0:
            return _input(what, args)
        value = self.values[number]
        if what in ("getattr", "setattr"):
            return self._attribute(value, what, args, writable)
        if what == "await":
            return _awaited(self._connection, value)
        if what in _special(value):
            if what == "call":
                return value(*args, **kwargs)
            if what == "iter":
                return iter(value)
            return getattr(type(value), f"__{what}__")(value, *args)
        raise AttributeError(f"the object of the tests does not support {what:.20}")

    def _attribute(self, value: Any, what: str, args: Any, writable: bool) -> Any:
        name, own = str(args[0]), _is_of_tests(value)
        if name[:1] == "_" or not (own or type(value) in _FILES):
            raise AttributeError(f"the object of the tests has no attribute {name:.80}")
        if what == "getattr":
            return getattr(value, name)
        if own and writable:
            setattr(value, name, args[1])
        return own and writable


def _special(value: Any) -> list[str]:
    """Return the special methods of an object that the submission may use."""
    if isinstance(value, types.CoroutineType):
        return ["await"]
    if type(value).__module__ in _OF_TESTS:
        return operators(type(value))
    found = ["call"] if callable(value) else []
    return [*found, "iter", "next"] if isinstance(value, Iterator) else found


def _is_of_tests(value: Any) -> bool:
    module = getattr(type(value), "__module__", "")
    return module in _OF_TESTS or module == _MOCKS


def _input(what: str, args: Any) -> Any:
    """Read from the stdin of the tests; return "" if they set none."""
    if what == "input":
        return input(*args)
    if what == "readline":
        return sys.stdin.readline()
    return sys.stdin.read(*args)


def _awaited(connection: Any, value: Any) -> Any:
    """Run a coroutine of the tests to completion, on their event loop if one is running."""
    import asyncio

    loop = connection.loop
    if loop is None:
        return asyncio.run(value)
    return asyncio.run_coroutine_threadsafe(value, loop).result()


def _importable(value: Any) -> tuple[str, str] | None:
    """Return the module and name from which a builtin can be imported, such as ("operator", "add")."""
    module = getattr(value, "__module__", None) or "builtins"
    name = getattr(value, "__qualname__", "")
    if "." in name and module == "builtins":
        module = "builtins"
    try:
        found = operator.attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError, TypeError):
        return None
    return (module, name) if found is value and not isinstance(value, types.ModuleType) else None


def become(value: Any, now: Any) -> None:
    """Replace the content of a list, dict, set, bytearray or deque by that of `now`.

    Raises Malformed if the types differ.
    """
    if not isinstance(value, type(now)):
        raise Malformed("an argument whose type has changed")
    value.clear()
    if isinstance(value, (dict, set)):
        value.update(now)
    elif isinstance(value, (list, bytearray, collections.deque)):
        value.extend(now)
