"""Proxies, in the submission's process, for functions and objects of the tests. Runs in a sandbox."""

from __future__ import annotations

import io
from typing import Any, Callable  # noqa: UP035 - runs on whatever Python a sandbox has

# Any: values of every kind.
Apply = Callable[[int, str, Any, Any], Any]
"""Apply an operation to an object of the tests: (object number, operation, args, kwargs) -> result."""


class CallbackProxy:
    """A proxy for an object of the tests: a function, an iterator, or an object with attributes."""

    def __init__(self, apply: Apply, number: int, name: str, doc: str | None) -> None:
        self.__dict__.update(_CallbackProxy__apply=apply, _CallbackProxy__number=number)
        self.__dict__.update(__name__=name, __qualname__=name, __doc__=doc)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.__apply(self.__number, "getattr", (name,), {})

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__apply(self.__number, "setattr", (name, value), {}):
            self.__dict__.pop(name, None)
        else:  # the tests' object must not change: only this proxy has the new value
            self.__dict__[name] = value

    def __hash__(self) -> int:
        return object.__hash__(self)


_classes: dict[tuple[str, ...], type[CallbackProxy]] = {}


def number_of(value: Any) -> int:
    """Return the number by which the tests identify the object of a CallbackProxy."""
    return int(value.__dict__["_CallbackProxy__number"])


def proxy(apply: Apply, number: int, texts: Any, operators: list[str]) -> CallbackProxy:
    """Return a proxy for an object of the tests with the special methods `operators`.

    `texts` are the object's name and docstring.
    """
    key = tuple(operators)
    if key not in _classes:
        _classes[key] = type(
            "CallbackProxy",
            (CallbackProxy,),
            {f"__{each}__": _special(each) for each in operators},
        )
    return _classes[key](apply, number, *texts)


def _special(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        apply = self.__dict__["_CallbackProxy__apply"]
        return apply(number_of(self), name, args, kwargs)

    if name == "await":
        return lambda self: _awaited(method(self))
    return method


def _awaited(value: Any) -> Any:
    """Return an iterator for `__await__` that ends at once with `value`."""
    return value
    yield


class Input(io.TextIOBase):
    """The submission's standard input, which reads from the tests' `sys.stdin`."""

    def __init__(self, apply: Apply) -> None:
        self._apply = apply

    def readable(self) -> bool:
        """Return True: the stream is readable."""
        return True

    def read(self, size: int | None = -1, /) -> str:
        """Read characters, all of them by default."""
        return str(self._apply(-1, "read", (-1 if size is None else size,), {}))

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # typeshed: bytes, too
        """Read one line."""
        return str(self._apply(-1, "readline", (), {}))


class Printed(io.TextIOBase):
    """A bounded buffer of the submission's output, which the tests' own stream gets later."""

    MOST = 1 << 20

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0

    def writable(self) -> bool:
        """Return True: the stream is writable."""
        return True

    def write(self, text: str, /) -> int:
        """Buffer text, up to `MOST` characters in total; drop the rest. Returns the length of `text`."""
        if self._size < self.MOST:
            self._parts.append(text[: self.MOST - self._size])
            self._size += len(text)
        return len(text)

    def take(self) -> str:
        """Return and clear the buffered text."""
        text, self._parts = "".join(self._parts), []
        return text
