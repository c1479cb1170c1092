"""Load a submission and apply requests to it. Runs in a sandbox.

The first line on stdin is the job. Each further line is a request; its response is one line on the
original stdout. The submission shares this process and can forge every response. That gains nothing:
a response is only compared with an expected value, which is not in the sandbox.

An object that is not plain data stays here. The tests get its number and, in the same response, a
description. They evaluate later operations on that description and send no further request.
"""

from __future__ import annotations

import builtins
import collections
import functools
import importlib
import json
import operator
import os
import sys
import threading
import types
from typing import Any  # Any: values and requests of every kind

from sandboxkit.integrations.rewards._in_sandbox.aliases import Alias, with_aliases
from sandboxkit.integrations.rewards._in_sandbox.callbacks import (
    CallbackProxy,
    Input,
    Printed,
    number_of,
    proxy,
)
from sandboxkit.integrations.rewards._in_sandbox.claims import (
    RAISED_BY_TESTS,
    ancestors,
    is_record,
    named,
    of_submission,
)
from sandboxkit.integrations.rewards._in_sandbox.decode import decode
from sandboxkit.integrations.rewards._in_sandbox.encode import MAX_DEPTH, encode
from sandboxkit.integrations.rewards._in_sandbox.operations import OPERATIONS, exception
from sandboxkit.integrations.rewards._in_sandbox.snapshot import describe, operators
from sandboxkit.integrations.rewards._in_sandbox.submission import (
    LoadedSubmission,
    send,
    take_channel,
)

_MUTABLE = (list, dict, set, bytearray, collections.deque)
_ROUTINES = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial),
    *(type(functools.lru_cache(None)(len)), types.MethodDescriptorType, types.MethodWrapperType),
    *(types.WrapperDescriptorType, types.ClassMethodDescriptorType),
)
_MOST_OBJECTS = 20_000
"""The maximum number of objects that one response describes. The tests cannot use further ones."""
_DESCRIBED = ("snapshot", "compare")
"""Operations whose objects are described even if their class is live."""


class Subject:
    """The submission, the objects that the tests know by number, and the connection to the tests."""

    def __init__(self, requests: Any, answers: int) -> None:
        self._requests, self._answers = requests, answers
        self._submission = LoadedSubmission()
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._proxies: dict[int, CallbackProxy] = {}
        self._waiting: list[int] = []
        """Numbers of the objects in the current answer that are not described yet."""
        self._met: set[int] = set()
        self._classes: set[str] = set()
        """Names of live classes, whose objects the tests do not freeze."""
        self._live: tuple[type, ...] = ()
        self._describe_live = False
        self._changes: list[Any] = []
        self._coroutines: Any = None
        self._out, self._errors = Printed(), Printed()
        self._lock = threading.RLock()

    def serve(self) -> None:
        """Load the submission, then execute requests until stdin ends."""
        sys.stdout, sys.stderr = self._out, self._errors
        job = json.loads(self._requests.readline())
        loaded = self._submission.guarded(self._submission.load, job)
        failed = [*loaded, {}] if loaded[0] != "value" else None
        if failed is None:
            sys.stdin = Input(self._apply_in_tests)
            own = self._submission.names["__builtins__"]  # may differ from the module builtins
            (own if isinstance(own, dict) else vars(own))["input"] = builtins.input = self._input
            self._classes = set(job["live"])
        for line in self._requests:
            self._send(failed or self._guarded(json.loads(line)))

    def _input(self, prompt: object = "", /) -> str:
        return str(self._apply_in_tests(-1, "input", (str(prompt),), {}))

    def _apply_in_tests(self, number: int, what: str, args: Any, kwargs: Any) -> Any:
        """Apply an operation to an object of the tests; return its result or raise its exception.

        Executes requests of the tests until the result arrives.
        """
        with self._lock:
            outer, self._met = self._met, set()
            message = ["callback", number, what]
            message.append([self._encoded(each) for each in args])
            message.append({name: self._encoded(value) for name, value in kwargs.items()})
            self._send([*message, self._extras()])
            self._met = outer
            for line in self._requests:
                request = json.loads(line)
                if request[0] == "return":
                    return self._decoded(request[1])
                if request[0] == "raise":
                    raise self._exception(request)
                self._send(self._guarded(request))
            raise EOFError("the tests have ended")

    def _exception(self, request: Any) -> BaseException:
        _, names, text, number, args, raised = request
        error = exception(
            None if number is None else self._objects[number],
            names,
            [self._decoded(each) for each in args],
            text,
        )
        error.__dict__[RAISED_BY_TESTS] = raised
        return error

    def _send(self, answer: Any) -> None:
        send(self._answers, answer)

    def _guarded(self, request: Any) -> list[Any]:
        outer, self._describe_live = (
            self._describe_live,
            request[0] == "do" and request[1] in _DESCRIBED,
        )
        met, self._met = self._met, set()
        self._changes = []
        try:
            answer = self._submission.guarded(self._answered, request)
            if answer[0] != "value":
                answer = [*answer, self._extras()]
        finally:
            self._describe_live, self._met = outer, met
        return answer

    def _answered(self, request: Any) -> list[Any]:
        return ["value", self._done(request), self._extras()]

    def _extras(self) -> dict[str, Any]:
        """Return the extra parts of a response: descriptions, changed arguments, printed text."""
        found: dict[str, Any] = {}
        objects: list[Any] = []
        while self._waiting and len(objects) < _MOST_OBJECTS:
            objects.append(self._description(self._waiting.pop()))
        self._waiting.clear()
        parts = {
            "objects": objects,
            "changes": self._changes,
            "out": self._out.take(),
            "err": self._errors.take(),
        }
        found.update((name, part) for name, part in parts.items() if part)
        self._changes = []
        return found

    def _description(self, number: int) -> list[Any]:
        value = self._objects[number]
        kind = type(value)
        classes = [self._number(each) for each in kind.__mro__[:-1]]
        entry = [number, named(kind), classes, operators(kind)]
        if issubclass(kind, self._live) and not self._describe_live:
            return entry
        return [*entry, describe(value, self._reference)]

    def _done(self, request: Any) -> Any:
        kind, names = request[0], self._submission.names
        if kind == "do":
            return self._operated(request)
        if kind == "get":
            return self._encoded(self._got(request[1]))
        if kind == "names":
            own = [n for n in names if n[:1] != "_" and type(names[n]) is not types.ModuleType]
            return encode(own)
        if kind == "live":
            return encode(
                [
                    [self._number(self._found(name, names[name])), name]
                    for name in sorted(self._classes)
                    if isinstance(names.get(name), type)
                ]
            )
        if kind == "set":
            names[request[1]] = self._decoded(request[2])
        elif kind == "delete":
            del names[request[1]]
        elif kind == "run":
            return self._run(request)
        elif kind == "import":
            sys.path.insert(0, request[2])
            return self._encoded(importlib.import_module(request[1]))
        return None

    def _got(self, name: str) -> Any:
        names = self._submission.names
        if name not in names:
            return self._found(name, getattr(sys.modules[names["__name__"]], name))
        return self._found(name, names[name])

    def _found(self, name: str, value: Any) -> Any:
        """Return `value`; record it first if `name` is that of a class whose objects stay live."""
        if name in self._classes and isinstance(value, type) and value not in self._live:
            self._live = (*self._live, value)
        return value

    def _operated(self, request: Any) -> Any:
        _, name, wires, keywords, in_place = request
        function = OPERATIONS[name]
        args = [self._decoded(each) for each in wires]
        kwargs = {key: self._decoded(each) for key, each in keywords.items()}
        given = [  # without strict=: sandboxes may have an older Python
            *zip(args, wires),  # noqa: B905
            *zip(kwargs.values(), keywords.values()),  # noqa: B905
        ]
        try:
            result = function(*args, **kwargs)
            if name == "getattr" and isinstance(args[0], types.ModuleType):
                self._found(args[1], result)
            return self._encoded(result)
        finally:
            self._changes = self._changed(given[: None if in_place is True else int(in_place)])

    def _changed(self, given: Any) -> list[Any]:
        """Return the changed arguments: the position and the new content of each."""
        found = []
        for place, (value, was) in enumerate(given):
            if isinstance(was, list) and was[0] == "handle":
                now = self._reference(value, 0)
                if now[0] == "object":
                    found.append([place, now])
            elif isinstance(value, _MUTABLE):
                now = encode(value, self._reference)
                if now != was:
                    found.append([place, now])
        return found

    def _run(self, request: Any) -> Any:
        """Run coroutines for a time slice; return the number and the result of each that ended."""
        if self._coroutines is None:
            from sandboxkit.integrations.rewards._in_sandbox.coroutines import Coroutines

            self._coroutines = Coroutines()
        _, begin, cancel, seconds = request
        ended = self._coroutines.run({n: self._objects[n] for n in begin}, cancel, seconds)
        return [
            [number, self._submission.guarded(lambda each: ["value", self._encoded(each())], take)]
            for number, take in ended
        ]

    def _decoded(self, wire: Any) -> Any:
        return decode(wire, self._not_plain)

    def _not_plain(self, wire: Any, depth: int) -> Any:
        kind = wire[0]
        if kind == "handle":
            return self._objects[wire[1]]
        if kind == "callback":
            _, number, name, special, text = wire
            if number not in self._proxies:
                self._proxies[number] = proxy(self._apply_in_tests, number, (name, text), special)
            return self._proxies[number]
        return operator.attrgetter(wire[2])(importlib.import_module(wire[1]))

    def _encoded(self, value: Any) -> Any:
        kind = type(value)
        extended = issubclass(kind, (int, float, str, list, tuple, dict, set)) and of_submission(
            value
        )
        if extended and not (issubclass(kind, tuple) and is_record(kind)):
            return self._reference(value, MAX_DEPTH)  # a copy would lose the methods of its class
        if kind in (list, dict, tuple):
            value = with_aliases(value)
        return encode(value, self._reference)

    def _reference(self, value: Any, depth: int) -> list[Any]:
        """Return the encoded reference to an object, which stays in this process."""
        kind = type(value)
        if kind is Alias:
            content = value.content and [encode(value.content[0], self._reference, depth)]
            return ["alias", value.number, content]
        if issubclass(kind, CallbackProxy):
            return ["callback", number_of(value)]
        if kind in (type, types.BuiltinFunctionType):
            builtin = getattr(builtins, value.__name__, None) is value
            if builtin and not (kind is type and issubclass(value, BaseException)):
                return ["named", value.__name__]
        number = self._number(value)
        if issubclass(kind, type):
            errors = ancestors(value) if issubclass(value, BaseException) else []
            return ["class", number, named(value), [self._number(e) for e in value.__mro__], errors]
        if issubclass(kind, types.ModuleType):
            return ["module", number]
        if issubclass(kind, _ROUTINES):
            return ["function", number]
        if hasattr(kind, "__await__"):
            return ["coroutine", number]
        steps = hasattr(kind, "__next__") or hasattr(kind, "__anext__")
        if steps and not issubclass(kind, self._live):
            return ["iterator", number, kind.__name__]
        return self._object(number)

    def _object(self, number: int) -> list[Any]:
        if number not in self._met:
            self._met.add(number)
            self._waiting.append(number)
        return ["object", number]

    def _number(self, value: Any) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return number


def main() -> None:
    """Execute the requests on stdin, then exit the process."""
    requests, answers = take_channel()
    Subject(requests, answers).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
