"""Runs in the judge's sandbox: stand-ins for what lives in the subject's.

An operator between an object of the submission and plain data is never left to the submission:
the other side may be what the test expects. It works on the plain value that the object stands
for, of which the subject sent one when it handed the object out, or it is a TypeError.
"""

from __future__ import annotations

import asyncio
import builtins
import collections
import importlib
import inspect
import itertools
import opcode
import operator
import threading
import types
from collections.abc import Iterator
from typing import Any  # Any: values of tests and submissions

from sandboxkit.integrations.rewards._in_sandbox.decode import Malformed, decode
from sandboxkit.integrations.rewards._in_sandbox.encode import encode

_MOST_ITEMS = 100_000
_MOST_EXCEPTIONS = 1000
_TEXT = 500
_ARITHMETIC = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow"),
    *("lshift", "rshift", "and_", "or_", "xor"),
)
_ALONE = (
    *("getitem", "setitem", "delitem", "neg", "pos", "abs", "invert"),
    *("int", "float", "complex", "round"),
)


class SubjectFailed(BaseException):
    """The submission cannot be tested at all. A test that catches it all the same is not passed."""

    def __init__(self, outcome: str, detail: str) -> None:
        super().__init__(detail)
        self.outcome, self.detail = outcome, detail


class Stub:
    """An object of the submission."""

    def __init__(self, tie: Tie, number: int, kind: str, form: Any) -> None:
        self.__dict__.update(_tie=tie, _number=number, _kind=kind, _form=form)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__qualname__", "__doc__"):
            raise AttributeError(name)
        return self._tie.do("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._tie.do("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._tie.do("delattr", self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._tie.do("call", self, *args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        iterator = self._tie.do("iter", self)
        if not isinstance(iterator, Stub):
            raise TypeError(f"iter() of a {self._kind} is no iterator")
        return _steps(iterator)

    def __next__(self) -> Any:
        return self._tie.do("next", self)

    def __contains__(self, item: Any) -> bool:
        return any(each is item or each == item for each in itertools.islice(self, _MOST_ITEMS))

    def __eq__(self, other: Any) -> bool:
        if isinstance(other, Stub) and self._form and other._form and not self._tie.believes(self):
            return self is other or bool(_plain(self, "==") == _plain(other, "=="))
        if isinstance(other, Stub) or self._tie.believes(self):
            return self is other or bool(self._tie.do("eq", self, other))
        try:
            plain = _plain(self, "==")
        except TypeError:
            return False
        if isinstance(plain, list) and isinstance(other, (tuple, set, frozenset)):
            plain = type(other)(plain)
        return bool(plain == other)

    def __ne__(self, other: Any) -> bool:
        return not self == other

    def __hash__(self) -> int:
        if self._form and not self._tie.believes(self):
            return hash(_plain(self, "hash()"))
        return hash(self._tie.do("hash", self))

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, Stub) and bool(self._tie.do("isinstance", value, self))

    def __subclasscheck__(self, value: Any) -> bool:
        return isinstance(value, Stub) and bool(self._tie.do("issubclass", value, self))

    def __bool__(self) -> bool:
        return bool(self._tie.do("bool", self))

    def __len__(self) -> int:
        return operator.index(self._tie.do("len", self))

    def __index__(self) -> int:
        return operator.index(_plain(self, "index()"))

    def __repr__(self) -> str:
        return str(self._tie.do("repr", self))

    def __str__(self) -> str:
        return str(self._tie.do("str", self))

    def __format__(self, form: str) -> str:
        return str(self._tie.do("format", self, form))

    def __enter__(self) -> Any:
        return self._tie.do("enter", self)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> bool:
        if error is None:
            return bool(self._tie.do("exit", self, None, ""))
        names = [each.__name__ for each in type(error).__mro__]
        swallowed = self._tie.do("exit", self, names, str(error)[:_TEXT])
        # What fails in a test is not the submission's to put aside, nor its own failure.
        return bool(swallowed) and self._tie.is_ordinary(error) and _is_raise(trace)


def _steps(iterator: Stub) -> Iterator[Any]:
    while True:
        try:
            item = iterator._tie.do("next", iterator)
        except StopIteration:
            return
        yield item


def _plain(value: Any, what: str) -> Any:
    if not isinstance(value, Stub):
        return value
    if not value._form:
        raise TypeError(f"{what} between a {value._kind} of the submission and plain data")
    return decode(value._form[0])


def _define(name: str, *, reflected: str = "") -> None:
    """Two objects of the submission: in the subject. One and plain data: here, on plain data."""
    function = getattr(operator, name)

    def between(self: Stub, other: Any) -> Any:
        if isinstance(other, Stub) or self._tie.believes(self):
            return self._tie.do(name, self, other)
        return function(_plain(self, name), other)

    def turned(self: Stub, other: Any) -> Any:
        if self._tie.believes(self):
            return self._tie.do(name, other, self)
        return function(other, _plain(self, name))

    setattr(Stub, f"__{name.strip('_')}__", between)
    if reflected:
        setattr(Stub, reflected, turned)


for _name in ("lt", "le", "gt", "ge"):
    _define(_name)
for _name in _ARITHMETIC:
    _define(_name, reflected=f"__r{_name.strip('_')}__")


def _define_one(name: str) -> None:
    """An operator without another side."""

    def alone(self: Stub, *args: Any) -> Any:
        return self._tie.do(name, self, *args)

    setattr(Stub, f"__{name}__", alone)


for _name in _ALONE:
    _define_one(_name)


setattr(Stub, "__doc__", property(lambda stub: stub._tie.do("getattr", stub, "__doc__")))  # noqa: B010


class Tie:
    """The calls between the tests and the submission; `exchange` carries one line each way."""

    def __init__(self, exchange: Any, operators: list[str]) -> None:
        self._exchange, self._operators = exchange, operators
        self._stubs: dict[int, Stub] = {}
        self._theirs: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._exceptions: dict[tuple[str, ...], type[BaseException]] = {}
        self._lock = threading.RLock()
        self.failure: SubjectFailed | None = None

    def believes(self, stub: Stub) -> bool:
        """Whether the task says that the operators of an object's class are what it tests."""
        return stub._kind.rpartition(".")[2] in self._operators

    def is_ordinary(self, error: BaseException) -> bool:
        """Whether the submission may handle it; a failed assertion of the tests it may not."""
        if isinstance(error, AssertionError):
            self.failure = self.failure or SubjectFailed("failed", f"assertion failed: {error}")
        return isinstance(error, Exception) and not isinstance(error, AssertionError)

    def get(self, name: str) -> Any:
        """A name of the submission's module. Raises AttributeError."""
        return self._ask(["get", name])

    def names(self) -> list[str]:
        """What the submission's module defines, without a leading underscore."""
        return [str(each) for each in self._ask(["names"])]

    def load(self, module: str, folder: str) -> Any:
        """A module of the submission."""
        return self._ask(["import", module, folder])

    def do(self, what: str, *args: Any, **kwargs: Any) -> Any:
        """Do something to objects of the submission, and bring back what became of `args`."""
        named = {name: self._out(value) for name, value in kwargs.items()}
        given = (*args, *kwargs.values())
        return self._ask(["do", what, [self._out(each) for each in args], named], given)

    def _ask(self, request: Any, args: tuple[Any, ...] = ()) -> Any:
        try:
            with self._lock:  # tests may have threads
                answer = self._exchange(request)
                while isinstance(answer, list) and answer[:1] == ["asked"]:
                    answer = self._exchange(self._answered(answer))
            return self._read(answer, args)
        except SubjectFailed as failure:
            self.failure = self.failure or failure
            raise

    def _read(self, answer: Any, args: tuple[Any, ...]) -> Any:
        try:
            if answer[0] == "value":
                for place, wire in answer[2] if len(answer) > 2 else []:
                    _become(args[place], self._in(wire))
                return self._in(answer[1])
            if answer[0] == "memory":
                raise SubjectFailed("oom", "MemoryError")
            _, phase, ancestors, text, wires, state, *changes = answer
            for place, wire in changes[0] if changes else []:
                _become(args[place], self._in(wire))
            if phase != "running":
                raise SubjectFailed("failed", f"{ancestors[0]} while {phase}: {text}")
            error = _made(self._exception(ancestors), [self._in(each) for each in wires])
            error.__dict__["_text"] = str(text)
            error.__dict__.update({str(name): self._in(each) for name, each in state.items()})
        except (TypeError, ValueError, IndexError, KeyError, AttributeError, RecursionError):
            raise SubjectFailed("tampered", "the answer is of no known kind") from None
        raise error from None

    def _answered(self, asked: Any) -> Any:
        """Do what the submission asks of something that the tests handed to it."""
        try:
            _, number, what, wires, named = asked
            value, args = self._theirs[number], [self._in(each) for each in wires]
            if what == "next" and isinstance(value, Iterator):
                result = next(value)
            elif what == "getattr" and _of_tests(value) and str(args[0])[:1] != "_":
                result = getattr(value, str(args[0]))
            elif what == "setattr" and _of_tests(value) and str(args[0])[:1] != "_":
                setattr(value, str(args[0]), args[1])
                result = None
            elif what == "call" and callable(value):
                result = value(*args, **{name: self._in(each) for name, each in named.items()})
            else:
                raise AttributeError(f"what the tests handed over has no {what!s:.20}")
            return ["return", self._out(result)]
        except Exception as error:  # noqa: BLE001 - the submission's to handle, as in one process
            self.is_ordinary(error)
            names = [each.__name__ for each in type(error).__mro__]
            return ["raise", names, str(error)[:_TEXT]]

    def _in(self, wire: Any) -> Any:
        return decode(wire, self._not_plain_in)

    def _not_plain_in(self, wire: Any, depth: int) -> Any:
        if wire[0] == "theirs":
            return self._theirs[wire[1]]
        if wire[0] != "handle":
            raise Malformed("a value of no known type")
        _, number, what, name, form = wire
        if what == "exception":
            return self._exception(name, number)
        if number not in self._stubs:
            self._stubs[int(number)] = Stub(self, number, str(name), form)
        if what == "coroutine":
            return _awaited(self, self._stubs[number])
        return self._stubs[number]

    def _out(self, value: Any) -> Any:
        return encode(value, self._not_plain_out)

    def _not_plain_out(self, value: Any, depth: int) -> Any:
        if isinstance(value, Stub):
            return ["handle", value._number]
        number = getattr(value, "_of_submission", None) if isinstance(value, type) else None
        if number is not None:
            return ["handle", number]
        if isinstance(value, (type, types.BuiltinFunctionType, types.MethodDescriptorType)):
            named = _importable(value)
            if named is not None:
                return ["named", *named]
        number = self._numbers.setdefault(id(value), len(self._theirs))
        if number == len(self._theirs):
            self._theirs.append(value)
        name = getattr(value, "__name__", "")
        return ["theirs", number, name if isinstance(name, str) else ""]

    def _exception(self, ancestors: Any, number: int | None = None) -> type[BaseException]:
        """A class of the same name here, below the same builtins."""
        first, *rest = [str(each) for each in ancestors]
        names = (first, *rest)
        known = self._exceptions.get(names)
        if known is None:
            builtin = getattr(builtins, first, None)
            if isinstance(builtin, type) and issubclass(builtin, BaseException):
                return builtin
            if len(self._exceptions) > _MOST_EXCEPTIONS or len(names) > 50:
                raise Malformed("too many classes of exceptions")
            base = self._exception(rest) if rest else Exception
            others = [getattr(builtins, each, None) for each in rest]
            bases = [base, *(each for each in others if _adds(each, base))]
            known = _class(first.rpartition(".")[2] or "Exception", bases)
            self._exceptions[names] = known
        if number is not None:
            known._of_submission = number  # type: ignore[attr-defined]  # how it goes back
        return known


def _is_raise(trace: Any) -> bool:
    """Whether an exception comes from a `raise` of the tests, and not from what they called."""
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    own = bool(code.co_filename.startswith("test"))
    return own and opcode.opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"


def _adds(kind: Any, base: type) -> bool:
    """Whether a class of exceptions is one that another does not derive from."""
    if not isinstance(kind, type) or not issubclass(kind, BaseException):
        return False
    return not issubclass(base, kind)


def _class(name: str, bases: list[Any]) -> type[BaseException]:
    def text(self: Any) -> str:
        return str(self.__dict__.get("_text", BaseException.__str__(self)))

    try:
        return types.new_class(name, tuple(bases), exec_body=lambda own: own.update(__str__=text))
    except TypeError:  # they do not go together
        return types.new_class(name, (bases[0],), exec_body=lambda own: own.update(__str__=text))


def _made(kind: type[BaseException], args: list[Any]) -> BaseException:
    try:
        return kind(*args)
    except TypeError:  # one that wants other arguments than it keeps
        return kind.__new__(kind)


def _awaited(tie: Tie, stub: Stub) -> Any:
    def ask() -> Any:
        try:
            return tie.do("wait", stub)
        except StopIteration as error:  # which no future can hold
            raise RuntimeError("coroutine raised StopIteration") from error

    async def wait() -> Any:
        return await asyncio.to_thread(ask)

    return wait()


def _of_tests(value: Any) -> bool:
    return getattr(type(value), "__module__", "") in ("tests", "judge")


def _importable(value: Any) -> tuple[str, str] | None:
    """Where a builtin comes from, such as ("operator", "add"); None if nowhere."""
    module = getattr(value, "__module__", None) or "builtins"
    name = getattr(value, "__qualname__", "")
    if "." in name and module == "builtins":
        module = "builtins"
    try:
        found = operator.attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError, TypeError):
        return None
    return (module, name) if found is value and not inspect.ismodule(value) else None


def _become(value: Any, now: Any) -> None:
    """Change a list, dict, set, bytearray or deque in place."""
    if not isinstance(value, type(now)):
        raise Malformed("an argument that became another type")
    value.clear()
    if isinstance(value, (dict, set)):
        value.update(now)
    elif isinstance(value, (list, bytearray, collections.deque)):
        value.extend(now)
