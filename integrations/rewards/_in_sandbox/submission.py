"""Runs in a sandbox: loads a submission, and says what it raised."""

from __future__ import annotations

import itertools
import json
import operator
import os
import sys
import types
from typing import Any  # Any: values of every kind

from sandboxkit.integrations.rewards._in_sandbox.encode import encode

TEXT = 500
_MOST_ITEMS = 100_000
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by running code


class Submission:
    """The submission as a module. Its failures are answers: `raised`, or `memory`."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self._phase = "loading"

    def load(self, job: Any) -> list[Any]:
        """Run its code, and the setup after it."""
        module = types.ModuleType(job["module"])
        sys.modules[job["module"]] = module
        names = self.names = module.__dict__
        path = names["__file__"] = os.path.join(os.getcwd(), f"{job['module']}.py")
        try:
            exec(compile(job["code"].lstrip("\ufeff"), path, "exec"), names)
        except SystemExit as end:  # at its end, as programs do
            if end.code not in (None, 0):
                raise
        self._phase = "setup"
        exec(compile(job["setup"], "setup.py", "exec"), names)
        self._phase = "running"
        return ["value", ["none"]]

    def guarded(self, work: Any, request: Any) -> list[Any]:
        """The answer to a request, whatever happens."""
        try:
            return list(work(request))
        except MemoryError:
            return ["memory"]
        except BaseException as error:  # noqa: BLE001 - SystemExit and all: it is the submission's
            return self._raised(error)

    def _raised(self, error: BaseException) -> list[Any]:
        try:
            text = str(error)[:TEXT]
        except BaseException:  # noqa: BLE001 - the submission's __str__
            text = ""
        try:
            args = [encode(each, _told) for each in error.args]
            state = {name: encode(each, _told) for name, each in vars(error).items()}
        except BaseException:  # noqa: BLE001 - the submission's attributes
            args, state = [], {}
        return ["raised", self._phase, ancestors(type(error)), text, args, state]


def take_channel() -> tuple[Any, int]:
    """The lines of stdin, and stdout; what the submission reads and prints is nobody's."""
    lines, channel = os.fdopen(os.dup(0), "rb"), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    return lines, channel


def send(channel: int, answer: Any) -> None:
    """One line of JSON."""
    data = json.dumps(answer).encode() + b"\n"
    while data:
        data = data[os.write(channel, data) :]


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


def plain_form(value: Any) -> list[Any] | None:
    """The one plain value that an object stands for, if its class says how to compare it.

    One, and chosen by its type alone: with several of them it could guess.
    """
    kind: Any = type(value)
    if kind.__eq__ is object.__eq__ or hasattr(kind, "__dataclass_fields__"):
        return None
    for base in (int, float, str, dict, list, tuple, set, frozenset):
        if isinstance(value, base):
            return encode(value)
    state = getattr(value, "__dict__", {})
    if hasattr(kind, "__index__"):
        return encode(operator.index(value))
    if hasattr(kind, "__float__"):
        return encode(float(value))
    if hasattr(kind, "keys") and hasattr(kind, "__getitem__"):
        return encode({key: value[key] for key in itertools.islice(value.keys(), _MOST_ITEMS)})
    if hasattr(kind, "__iter__"):
        return encode(list(itertools.islice(iter(value), _MOST_ITEMS)))
    return encode(next(iter(state.values()))) if len(state) == 1 else None


def _told(value: Any, depth: int) -> list[Any]:
    return ["str", repr(value)[:TEXT]]
