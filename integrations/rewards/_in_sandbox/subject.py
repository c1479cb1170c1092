"""Runs in a sandbox: holds a submission, and does to it what each line on stdin says.

The first line is the job; each further one is a request, and gets one line of answer on what was
stdout at the start. The submission shares this process and can forge every answer. That gains it
nothing: an answer is only a claimed value, and what it is compared with is not in the sandbox.
"""

from __future__ import annotations

import builtins
import collections
import importlib
import json
import operator
import os
import sys
import threading
import types
from typing import Any  # Any: values and requests of every kind

from sandboxkit.integrations.rewards._in_sandbox.claims import (
    ancestors,
    named,
    of_submission,
    plain_form,
)
from sandboxkit.integrations.rewards._in_sandbox.decode import decode
from sandboxkit.integrations.rewards._in_sandbox.encode import MAX_DEPTH, encode
from sandboxkit.integrations.rewards._in_sandbox.submission import (
    Submission,
    send,
    take_channel,
)

_MUTABLE = (list, dict, set, bytearray, collections.deque)


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _exit(value: Any, ancestors: list[str] | None, text: str) -> Any:
    """Leave a `with` block, by what the tests raised in it or by nothing."""
    if ancestors is None:
        return type(value).__exit__(value, None, None, None)
    error = _exception(ancestors, text)
    return type(value).__exit__(value, type(error), error, None)


_OPERATIONS: dict[str, Any] = {
    "call": _call,
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "iter": iter,
    "next": next,
    "len": len,
    "hash": hash,
    "bool": bool,
    "repr": repr,
    "str": str,
    "int": int,
    "float": float,
    "complex": complex,
    "round": round,
    "format": format,
    "isinstance": isinstance,
    "issubclass": issubclass,
    "enter": lambda value: type(value).__enter__(value),
    "exit": _exit,
    "wait": lambda coroutine: importlib.import_module("asyncio").run(coroutine),
}
_OPERATIONS.update(
    {
        each.__name__.strip("_"): each
        for each in (
            *(operator.getitem, operator.setitem, operator.delitem, operator.index),
            *(operator.eq, operator.lt, operator.le, operator.gt, operator.ge),
            *(operator.neg, operator.pos, operator.abs, operator.invert),
            *(operator.add, operator.sub, operator.mul, operator.matmul, operator.truediv),
            *(operator.floordiv, operator.mod, operator.pow),
            *(operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor),
        )
    }
)


class Theirs:
    """Something of the tests: a function to call, an iterator, or an object with attributes."""

    def __init__(self, subject: Subject, number: int, name: str) -> None:
        self.__dict__["_Theirs__subject"] = subject
        self.__dict__["_Theirs__number"] = number
        self.__dict__.update(__name__=name, __qualname__=name)

    def __ask(self, what: str, *args: Any, **kwargs: Any) -> Any:
        return self.__subject.ask(self.__number, what, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__ask("call", *args, **kwargs)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self.__ask("next")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.__ask("getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__ask("setattr", name, value)


class Subject:
    """The submission, its objects that the tests hold, and the way to the tests."""

    def __init__(self, requests: Any, answers: int) -> None:
        self._requests, self._answers = requests, answers
        self._submission = Submission()
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._theirs: dict[int, Theirs] = {}
        self._changes: list[Any] = []
        self._lock = threading.RLock()

    def serve(self) -> None:
        """Do the job and every request, until there are no more."""
        loaded = self._guarded(self._submission.load, json.loads(self._requests.readline()))
        failed = loaded if loaded[0] != "value" else None
        for line in self._requests:
            self._send(failed or self._guarded(self._do, json.loads(line)))

    def ask(self, number: int, what: str, args: Any, kwargs: Any) -> Any:
        """Have the tests do something with an object of theirs; meanwhile they may ask back."""
        with self._lock:
            keywords = {name: self._out(value) for name, value in kwargs.items()}
            self._send(["asked", number, what, [self._out(each) for each in args], keywords])
            for line in self._requests:
                request = json.loads(line)
                if request[0] == "return":
                    return self._in(request[1])
                if request[0] == "raise":
                    raise _exception(request[1], request[2])
                self._send(self._guarded(self._do, request))
            raise EOFError("the tests have ended")

    def _send(self, answer: Any) -> None:
        send(self._answers, answer)

    def _guarded(self, work: Any, request: Any) -> list[Any]:
        self._changes = []
        answer = self._submission.guarded(work, request)
        return [*answer, self._changes] if answer[0] == "raised" else answer

    def _do(self, request: Any) -> list[Any]:
        kind, names = request[0], self._submission.names
        if kind == "get":
            return ["value", self._out(self._got(request[1]))]
        if kind == "names":
            own = [n for n in names if n[:1] != "_" and type(names[n]) is not types.ModuleType]
            return ["value", encode(own)]
        if kind == "import":
            sys.path.insert(0, request[2])
            return ["value", self._out(importlib.import_module(request[1]))]
        return self._operate(request)

    def _got(self, name: str) -> Any:
        names = self._submission.names
        return names[name] if name in names else getattr(sys.modules[names["__name__"]], name)

    def _operate(self, request: Any) -> list[Any]:
        _, name, wires, keywords = request
        function = _OPERATIONS[name.strip("_")]
        args = [self._in(each) for each in wires]
        kwargs = {key: self._in(each) for key, each in keywords.items()}
        given = [  # without strict=: sandboxes may have an older Python
            *zip(args, wires),  # noqa: B905
            *zip(kwargs.values(), keywords.values()),  # noqa: B905
        ]
        try:
            return ["value", self._out(function(*args, **kwargs)), self._changed(given)]
        except BaseException:
            self._changes = self._changed(given)
            raise

    def _changed(self, given: Any) -> list[Any]:
        """What became of arguments: their places, and what is in them now."""
        return [
            [place, now]
            for place, (value, was) in enumerate(given)
            if isinstance(value, _MUTABLE)
            and was[0] != "handle"
            and (now := encode(value, self._handle)) != was
        ]

    def _in(self, wire: Any) -> Any:
        return decode(wire, self._not_plain_in)

    def _not_plain_in(self, wire: Any, depth: int) -> Any:
        kind = wire[0]
        if kind == "handle":
            return self._objects[wire[1]]
        if kind == "theirs":
            if wire[1] not in self._theirs:
                self._theirs[wire[1]] = Theirs(self, wire[1], wire[2])
            return self._theirs[wire[1]]
        return operator.attrgetter(wire[2])(importlib.import_module(wire[1]))

    def _out(self, value: Any) -> Any:
        if isinstance(value, (int, float, str, tuple, list, dict, set)) and of_submission(value):
            return self._handle(value, MAX_DEPTH)  # with the methods that its class gives it
        return encode(value, self._handle)

    def _handle(self, value: Any, depth: int) -> list[Any]:
        if type(value) is Theirs:
            return ["theirs", value.__dict__["_Theirs__number"], ""]
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["handle", number, "exception", ancestors(value), []]
        kind = "coroutine" if isinstance(value, types.CoroutineType) else "object"
        form = plain_form(value) if of_submission(value) else []
        return ["handle", number, kind, named(type(value)), form]


def _exception(ancestors: list[str], text: str) -> BaseException:
    """What the tests raised, or the nearest builtin of it."""
    for name in ancestors:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return kind(text)
    return RuntimeError(text)


def main() -> None:
    """Serve the lines of stdin."""
    requests, answers = take_channel()
    Subject(requests, answers).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
