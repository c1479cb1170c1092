"""Sends calls between the tests and the submission as data. Runs in the judge's sandbox."""

from __future__ import annotations

import builtins
import functools
import sys
import threading
import weakref
from typing import Any  # Any: values of tests and submissions

from sandboxkit.integrations.rewards._in_sandbox.claims import RAISED_BY_TESTS
from sandboxkit.integrations.rewards._in_sandbox.decode import Malformed, decode
from sandboxkit.integrations.rewards._in_sandbox.exceptions import Exceptions
from sandboxkit.integrations.rewards._in_sandbox.frozen import Frozen, frozen
from sandboxkit.integrations.rewards._in_sandbox.live import live
from sandboxkit.integrations.rewards._in_sandbox.remote import (
    BINARY,
    Class,
    Function,
    Module,
    Remote,
    Steps,
)
from sandboxkit.integrations.rewards._in_sandbox.repeats import Repeats
from sandboxkit.integrations.rewards._in_sandbox.shared_values import SharedValues, become

_TEXT = 500
_MOST_COMPARED = 1000
_UNCHANGING = frozenset(
    (
        *("snapshot", "compare", "signature", "vars", "getattr", "getitem", "contains", "iter"),
        *("lt", "le", "gt", "ge", "len", "hash", "bool", "repr", "str", "format", "reversed"),
        *("int", "float", "complex", "index", "round", "neg", "pos", "abs", "invert"),
        *BINARY,
    )
)
"""Read-only operations; any other operation invalidates all cached results."""
_REMEMBERED = (bool, int, float, str, bytes, type(None), list, tuple, dict, set, frozenset)
_REFUSED = frozenset(
    (
        *("exec", "eval", "compile", "open", "input", "breakpoint", "exit", "quit", "help"),
        *("getattr", "setattr", "delattr", "vars", "globals", "locals", "dir", "print"),
    )
)
"""Builtin functions that the tests never accept as a value from the submission."""
_UNKNOWN = {"compares": False, "hashable": True, "text": [None, None], "state": {}, "own": []}


class SubjectFailed(BaseException):
    """Ends grading with `outcome`; the test fails even if it catches this exception."""

    def __init__(self, outcome: str, detail: str) -> None:
        super().__init__(detail)
        self.outcome, self.detail = outcome, detail


class Connection:
    """Sends the tests' calls to the submission. `exchange` sends one request and returns the response."""

    def __init__(self, exchange: Any, job: Any) -> None:
        self._exchange, self._operators = exchange, set(job["operators"])
        self._in_place, self._classes = job["in_place"], set(job["live"])
        self._remotes: dict[int, Any] = {}
        self._live: dict[int, str] = {}
        self._last: dict[int, Any] = {}
        """The latest description of each object, and the proxy that uses it."""
        self._alike: dict[int, list[weakref.ref[Frozen]]] = {}
        """All proxies of each object."""
        self._answers: dict[Any, Any] = {}
        self._constants: dict[Any, Any] = {}
        self._repeats = Repeats(job["varies"])
        self._exceptions = Exceptions()
        self._raised: list[Exception] = []
        """Exceptions that callbacks of the tests raised into the submission, by number."""
        self._shared_values = SharedValues(self)
        self.loop: Any = None
        """The event loop on which the tests await coroutines of the submission; None if they do not."""
        self._lock = threading.RLock()
        self._call = threading.local()
        self.failure: SubjectFailed | None = None

    def begin(self) -> None:
        """Fetch the numbers of the submission's classes whose objects stay live in the tests."""
        self._live.update((int(number), str(name)) for number, name in self._request(["live"]))

    def is_live(self, classes: list[int]) -> bool:
        """Return whether objects of one of these classes (by number) stay live in the tests."""
        return any(number in self._live for number in classes)

    def trusts_operators(self, remote: Remote) -> bool:
        """Return whether the task's `operators` lists the object's class, so that its results count."""
        return any(self._live.get(number) in self._operators for number in remote._classes)

    def is_ordinary(self, error: BaseException) -> bool:
        """Return whether the submission may catch an exception of the tests.

        It may not catch a failed assertion of the tests, which is recorded as the grading's result.
        """
        assertion = isinstance(error, AssertionError)
        if assertion and not self._exceptions.is_of_submission(error):
            self.failure = self.failure or SubjectFailed("failed", f"assertion failed: {error}")
        return isinstance(error, Exception) and not assertion

    def tampered(self, detail: str) -> None:
        """End grading with the outcome "tampered": the submission contradicts itself."""
        self.failure = self.failure or SubjectFailed("tampered", detail)
        raise self.failure

    def named(self, name: str, value: Any, *, top: bool = False) -> Any:
        """Return a value that the tests read as `name`; if it is a function, store the name in it.

        `top` is True for an attribute of a module.
        """
        if isinstance(value, Class) and name in self._classes:
            self._live[value._number] = name
        return value._named(name, top) if isinstance(value, Function) else value

    def get(self, name: str) -> Any:
        """Return an attribute of the submission's module. Raises AttributeError."""
        answers = self._constants if name.isupper() else self._answers
        key = ("get", name)
        if key not in answers:
            answers[key] = self.named(name, self._request(["get", name]), top=True)
        return copied(answers[key])

    def set(self, name: str, *value: Any) -> None:
        """Set an attribute of the submission's module; delete it if no value is given."""
        self._answers.clear()
        self._constants.clear()
        self._repeats.clear()
        self._request(["set", name, self._out(value[0])] if value else ["delete", name])

    def names(self) -> list[str]:
        """Return the public names that the submission's module defines."""
        return [str(each) for each in self._request(["names"])]

    def load(self, module: str, folder: str) -> Any:
        """Return a module that the submission's process imports from `folder`."""
        return self._request(["import", module, folder])

    def once(self, what: str, *args: Any) -> Any:
        """Apply an operation, or return its cached result if nothing could have changed it since."""
        try:
            key = (what, *((each._number,) if isinstance(each, Remote) else each for each in args))
            hash(key)
        except TypeError:
            return self.do(what, *args)
        key = (*key, *map(type, args))
        if key not in self._answers:
            answer = self.do(what, *args)
            if what not in _UNCHANGING:
                return answer
            if not isinstance(answer, _REMEMBERED) and what != "snapshot":
                return answer
            self._answers[key] = answer
        return copied(self._answers[key])

    def do(self, what: str, *args: Any) -> Any:
        """Apply the operation `what` to objects of the submission and return the result."""
        return self._do(what, args, {}, back=self._take_discarded())

    def call(self, function: Remote, name: str, args: Any, kwargs: Any) -> Any:
        """Call a function of the submission.

        Its changes to the arguments are applied here too if the task's `in_place` lists `name`, or if
        the call is a whole statement of the tests.
        """
        back = self._take_discarded() or self._changes(name)
        top = name if isinstance(function, Function) and getattr(function, "_top", False) else ""
        return self._do("call", (function, *args), kwargs, back=back, name=name, top=top)

    def method(self, owner: Frozen, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of an object, and renew the description of the object afterwards."""
        back = self._take_discarded() or self._changes(name) or 1
        return self._do("method", (owner, name, *args), kwargs, back=back, name=name)

    def require_method(self, owner: Frozen, name: str) -> None:
        """Raise AttributeError if an object has no method `name`."""
        if not isinstance(self.once("getattr", owner, name), Function):
            raise AttributeError(f"{name}: a {owner._kind} of the submission has no such method")

    def signature(self, function: Remote) -> Any:
        """Return the signature of a function."""
        import inspect

        return inspect.Signature(
            [
                inspect.Parameter(
                    str(name),
                    inspect._ParameterKind(kind),
                    **({"default": default[0]} if default else {}),
                )
                for name, kind, default in self.do("signature", function)
            ]
        )

    def discarded(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function whose result the tests discard, and apply its changes to the arguments."""
        self._call.discarded = self._is_of_submission(function)
        return function(*args, **kwargs)

    def _is_of_submission(self, function: Any) -> bool:
        partial = isinstance(function, functools.partial) and function.func == self.method
        return partial or isinstance(function, Remote)

    def _take_discarded(self) -> bool:
        discarded, self._call.discarded = getattr(self._call, "discarded", False), False
        return discarded

    def _changes(self, name: str) -> bool:
        return self._in_place is True or (bool(self._in_place) and name in self._in_place)

    @functools.cached_property
    def _awaiting(self) -> Any:
        # Most tests await nothing, and importing asyncio would take a third of their time.
        from sandboxkit.integrations.rewards._in_sandbox.awaiting import CoroutineRunner

        return CoroutineRunner(self)

    def run(self, begin: list[int], cancel: list[int], seconds: float) -> list[Any]:
        """Start and cancel coroutines by number, and run all of them for up to `seconds`.

        Returns, for each that ended, its number and a function that returns its result or raises.
        """
        self._answers.clear()
        self._repeats.clear()
        ended = self._request(["run", begin, cancel, seconds], raw=True)
        return [
            (number, functools.partial(self._read, answer, (), known))
            for answers, known in [ended]
            for number, answer in answers
        ]

    def _do(
        self, what: str, args: Any, kwargs: Any, *, back: Any, name: str = "", top: str = ""
    ) -> Any:
        if what not in _UNCHANGING:
            self._answers.clear()
            if not top:
                self._repeats.clear()
        named = {name: self._out(value) for name, value in kwargs.items()}
        request = ["do", what, [self._out(each) for each in args], named, back]
        given, writable = (*args, *kwargs.values()), self._changes(name)
        return self._request(request, given, writable=writable, top=top)

    def _request(
        self,
        request: Any,
        given: tuple[Any, ...] = (),
        *,
        writable: bool = False,
        raw: bool = False,
        top: str = "",
    ) -> Any:
        try:
            with self._lock:  # tests may have threads
                answer = self._exchange(request)
                while isinstance(answer, list) and answer[:1] == ["callback"]:
                    answer = self._exchange(self._serve_callback(answer, writable))
            known = self._described_objects(answer)
            if top and self._repeats.differs(top, request[2][1:], request[3], answer):
                self.tampered(
                    f"{top}() returned different results for equal calls: list it in the task's "
                    "'varies' if it may"
                )
            if raw and answer[:1] == ["value"]:
                return answer[1], known
            return self._read(answer, given, known)
        except (StopIteration, StopAsyncIteration) as error:
            if request[0] == "do" and request[1] in ("next", "anext", "step"):
                raise
            # A StopIteration would silently end a loop of the tests that calls the submission.
            raise RuntimeError(f"the submission raised {type(error).__name__}") from error
        except SubjectFailed as failure:
            self.failure = self.failure or failure
            raise

    def _serve_callback(self, request: Any, writable: bool) -> Any:
        """Apply the submission's operation to an object of the tests; return the response message."""
        try:
            known = self._described_objects(request)
            read = functools.partial(self._in, known=known)
            _, number, what, wires, named, _ = request
            args = [read(each) for each in wires]
            kwargs = {str(name): read(each) for name, each in named.items()}
            result = self._shared_values.do(number, str(what), args, kwargs, writable)
            return ["return", self._out(result)]
        except Exception as error:  # noqa: BLE001 - raised in the submission, as in one process
            self.is_ordinary(error)
            names = [each.__name__ for each in type(error).__mro__]
            number = self._exceptions.number(type(error))
            args = [self._out(each) for each in error.args]
            self._raised.append(error)
            return ["raise", names, str(error)[:_TEXT], number, args, len(self._raised) - 1]

    def _described_objects(self, answer: Any) -> dict[Any, Any]:
        """Return the objects described in a response, by number; print the submission's output here."""
        try:
            extras = answer[-1]
            if not isinstance(extras, dict):
                raise Malformed("not a response")
            for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
                if name in extras:
                    stream.write(str(extras[name]))
            entries = extras.get("objects", [])
            last = self._last
            if len(entries) < _MOST_COMPARED and all(
                each[0] in last and last[each[0]][0] == each for each in entries
            ):
                return {each[0]: last[each[0]][1] for each in entries}
            known: dict[Any, Any] = {}
            for entry in entries:
                number, kind, classes, special, *about = entry
                if about:
                    known[number] = frozen(self, int(number), str(kind), classes, special)
                    known[number]._set_description(about[0], known)
                    self._alike.setdefault(number, []).append(weakref.ref(known[number]))
                elif self.is_live(classes):
                    made = self._remotes.get(number)
                    if made is None or type(made) is Frozen:
                        made = live(self, int(number), str(kind), classes, special)
                    known[number] = self._remotes[number] = made
                last[number] = (entry, known.get(number))
        except (TypeError, ValueError, IndexError, KeyError, AttributeError, RecursionError):
            raise SubjectFailed("tampered", "the answer is of no known kind") from None
        return known

    def _read(self, answer: Any, given: tuple[Any, ...], known: dict[Any, Any]) -> Any:
        read = functools.partial(self._in, known=known)
        try:
            if answer[0] == "memory":
                raise SubjectFailed("oom", "MemoryError")
            changes = answer[-1].get("changes", []) if isinstance(answer[-1], dict) else []
            for place, wire in changes:
                now, before = read(wire), given[place]
                if not isinstance(before, Remote):
                    become(before, now)
                elif isinstance(now, Frozen):
                    self._renew(before._number, now)
            if answer[0] == "value":
                return read(answer[1])
            _, phase, *described = answer[:8]
            if phase != "running":
                raise SubjectFailed("failed", f"{described[0][0]} while {phase}: {described[1]}")
            again = described[3].get(RAISED_BY_TESTS)
            if again is None:
                error = self._exceptions.error(described, read)
            else:
                error = self._raised[again]
        except (TypeError, ValueError, IndexError, KeyError, AttributeError, RecursionError):
            raise SubjectFailed("tampered", "the answer is of no known kind") from None
        raise error from error.__cause__

    def _renew(self, number: int, now: Frozen) -> None:
        """Apply the new description of the changed object `number` to all of its proxies."""
        living = [each for each in self._alike.get(number, ()) if each() is not None]
        self._alike[number] = living
        for each in living:
            before = each()
            if before is not None and before is not now:
                before._set_description(now._about, now._known)

    def _in(self, wire: Any, known: dict[Any, Any]) -> Any:
        return decode(wire, functools.partial(self.reference, known=known))

    def reference(self, wire: Any, depth: int, known: dict[Any, Any]) -> Any:
        """Return the proxy or value for a reference; `known` has the objects of the same response.

        Raises Malformed for a reference of an unknown kind.
        """
        kind = wire[0]
        if kind == "object":
            number = int(wire[1])
            if number not in known and number not in self._remotes:
                known[number] = frozen(self, number, "object", [], [])
                known[number]._set_description(_UNKNOWN, known)
            return known[number] if number in known else self._remotes[number]
        if kind == "alias":
            if wire[2]:
                known["alias", wire[1]] = self._in(wire[2][0], known)
            return known["alias", wire[1]]
        if kind == "callback":
            return self._shared_values.values[wire[1]]
        if kind == "named":
            return _builtin(str(wire[1]))
        if kind == "error":
            return self._exceptions.error(wire[1:], functools.partial(self._in, known=known))
        if kind == "class":
            _, number, name, classes, errors = wire
            if errors:
                return self._exceptions.kind(errors[0], errors[1], int(number))
            return self._remote(Class, int(number), str(name), classes)
        if kind == "coroutine":
            return self._awaiting.wait(int(wire[1]))
        kinds = {"function": Function, "module": Module, "iterator": Steps}
        if kind not in kinds:
            raise Malformed("a value of an unknown type")
        return self._remote(kinds[kind], int(wire[1]), *map(str, wire[2:3]))

    def _remote(self, kind: type[Remote], number: int, *about: Any) -> Any:
        if type(self._remotes.get(number)) is not kind:
            self._remotes[number] = kind(self, number, *about)
        return self._remotes[number]

    def _out(self, value: Any) -> Any:
        return self._shared_values.encode(value, self._exceptions)


def copied(value: Any) -> Any:
    """Copy the containers of a cached result, because the tests may change their copy."""
    kind = type(value)
    if kind in (list, set, frozenset):
        return kind(map(copied, value))
    if kind is tuple:
        return tuple(map(copied, value))
    return {key: copied(each) for key, each in value.items()} if kind is dict else value


def _builtin(name: str) -> Any:
    value = getattr(builtins, name)
    if name.startswith("_") or name in _REFUSED:
        raise Malformed("a builtin function that submissions must not return")
    if isinstance(value, type) and issubclass(value, BaseException):
        raise Malformed("an exception class without a description")
    return value
