"""Runs in a sandbox: stand-ins for functions and objects of the tests."""

from __future__ import annotations

import io
from typing import Any, Callable  # noqa: UP035 - runs on whatever Python a sandbox has

# Any: values of every kind.
Ask = Callable[[int, str, Any, Any], Any]
"""Has the tests do something with the object of a number: what, arguments, named arguments."""


class CallbackProxy:
    """An object of the tests: a function to call, an iterator, or one with attributes."""

    def __init__(self, ask: Ask, number: int, name: str, doc: str | None) -> None:
        self.__dict__.update(_CallbackProxy__ask=ask, _CallbackProxy__number=number)
        self.__dict__.update(__name__=name, __qualname__=name, __doc__=doc)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.__ask(self.__number, "getattr", (name,), {})

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__ask(self.__number, "setattr", (name, value), {}):
            self.__dict__.pop(name, None)
        else:  # the tests do not expect a change: it is seen here only
            self.__dict__[name] = value

    def __hash__(self) -> int:
        return object.__hash__(self)


_classes: dict[tuple[str, ...], type[CallbackProxy]] = {}


def number_of(value: Any) -> int:
    """The number under which the tests know the object that a stand-in is for."""
    return int(value.__dict__["_CallbackProxy__number"])


def proxy(ask: Ask, number: int, texts: Any, operators: list[str]) -> CallbackProxy:
    """The stand-in for an object of the tests that has these special methods.

    `texts` are its name and its docstring.
    """
    key = tuple(operators)
    if key not in _classes:
        _classes[key] = type(
            "CallbackProxy",
            (CallbackProxy,),
            {f"__{each}__": _special(each) for each in operators},
        )
    return _classes[key](ask, number, *texts)


def _special(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        ask = self.__dict__["_CallbackProxy__ask"]
        return ask(number_of(self), name, args, kwargs)

    if name == "await":
        return lambda self: _awaited(method(self))
    return method


def _awaited(value: Any) -> Any:
    """A finished coroutine's steps: none, and its value."""
    return value
    yield


class Input(io.TextIOBase):
    """Standard input as the tests have it, who may have put a text there."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def read(self, size: int | None = -1, /) -> str:
        """Read characters, all of them by default."""
        return str(self._ask(-1, "read", (-1 if size is None else size,), {}))

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # typeshed: bytes, too
        """Read one line."""
        return str(self._ask(-1, "readline", (), {}))


class Printed(io.TextIOBase):
    """Text that the submission prints, up to a limit, for the tests to have it on their stream."""

    MOST = 1 << 20

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0

    def writable(self) -> bool:
        """Whether it can be written: always."""
        return True

    def write(self, text: str, /) -> int:
        """Keep a text, unless there is too much."""
        if self._size < self.MOST:
            self._parts.append(text[: self.MOST - self._size])
            self._size += len(text)
        return len(text)

    def take(self) -> str:
        """Give out what came since the last time."""
        text, self._parts = "".join(self._parts), []
        return text
