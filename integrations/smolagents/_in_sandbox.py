"""The Python of an agent, inside its sandbox: code comes as lines of JSON, and values go back so.

Runs on Python 3.8 and later with the standard library alone. Standard output is the way back, so
what the code and its children print goes to standard error instead, where a mark that comes with
each request ends what belongs to it.
"""

from __future__ import annotations

import ast
import base64
import builtins
import contextlib
import importlib.util
import json
import linecache
import os
import signal
import sys
import traceback
import types
from typing import Any

MOST_VALUE = 1 << 20
MOST_FINAL = 16 << 20
MOST_TEXT = 50000
AGAIN_SECONDS = 1.0


class Final(BaseException):
    """The agent's final answer, on its way out of the agent's code."""


class OutOfTime(BaseException):
    """The step has run for as long as it may."""


def encode(value: Any) -> Any:
    """The value as plain JSON, with `__type__` for what JSON lacks, as smolagents reads it."""
    if value is None:
        return None
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, str):
        return str.__str__(value)  # what an enum of texts has, rather than its name
    if isinstance(value, dict):
        if "__type__" not in value and all(type(key) is str for key in value):
            return {key: encode(each) for key, each in value.items()}
        pairs = [[encode(key), encode(each)] for key, each in value.items()]
        return {"__type__": "dict_with_complex_keys", "data": pairs}
    if isinstance(value, list):
        return [encode(each) for each in value]
    for many in (tuple, set, frozenset):
        if isinstance(value, many):
            return {"__type__": many.__name__, "data": [encode(each) for each in value]}
    if isinstance(value, (bytes, bytearray)):
        return {"__type__": "bytes", "data": base64.b64encode(value).decode()}
    if isinstance(value, complex):
        return {"__type__": "complex", "real": value.real, "imag": value.imag}
    found = _of_a_module(value)
    if found is None:
        raise TypeError(
            f"a {type(value).__name__} cannot leave the sandbox: make it a text, a number, or a list "
            "or dict of these"
        )
    return found


def _of_a_module(value: Any) -> Any:
    def made_of(module: str, name: str) -> bool:
        kind = getattr(sys.modules.get(module), name, None)
        return isinstance(kind, type) and isinstance(value, kind)

    for name in ("datetime", "date", "time"):
        if made_of("datetime", name):
            return {"__type__": name, "data": value.isoformat()}
    if made_of("datetime", "timedelta"):
        return {"__type__": "timedelta", "total_seconds": value.total_seconds()}
    for module, name, sent in (("decimal", "Decimal", "Decimal"), ("pathlib", "PurePath", "Path")):
        if made_of(module, name):
            return {"__type__": sent, "data": str(value)}
    if made_of("numpy", "ndarray"):
        return {"__type__": "ndarray", "data": encode(value.tolist()), "dtype": str(value.dtype)}
    if made_of("numpy", "generic"):
        return encode(value.item())
    if made_of("PIL.Image", "Image"):
        import io

        picture = io.BytesIO()
        value.save(picture, format="PNG")
        return {"__type__": "PIL.Image", "data": base64.b64encode(picture.getvalue()).decode()}
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is not None:
        data = {name: encode(getattr(value, name)) for name in fields}
        kind = type(value)
        names = {"class_name": kind.__name__, "module": kind.__module__}
        return {"__type__": "dataclass", "data": data, **names}
    return None


class Interpreter:
    """The namespace that lasts from step to step, and what can be asked of it."""

    def __init__(self) -> None:
        module = types.ModuleType("__main__")
        module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = module
        self.names: dict[str, Any] = module.__dict__

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked; whatever the agent's code raises is a value of the answer."""
        try:
            with TimeLimit(request["seconds"]):
                reply: dict[str, Any] = getattr(self, request["do"])(**request["with"])
                return reply
        except Final as final:
            return {"final": True, "value": final.args[0]}
        except OutOfTime:
            return {"error": "", "timed_out": True}
        except BaseException as error:  # noqa: BLE001 - it goes to the agent
            return {"error": described(error)}

    def run(self, code: str, name: str) -> dict[str, Any]:
        """Run a step; the value of its last line, if that is an expression."""
        tree = ast.parse(code, name)
        end = tree.body[-1] if tree.body else None
        last = ast.Expression(end.value) if isinstance(end, ast.Expr) else None
        if last is not None:
            del tree.body[-1]
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        exec(compile(tree, name, "exec", dont_inherit=True), self.names)
        if last is None:
            return {"value": None}
        value = eval(compile(last, name, "eval", dont_inherit=True), self.names)
        try:
            encoded = encode(value)
            if len(json.dumps(encoded)) <= MOST_VALUE:
                return {"value": encoded}
        except Exception:  # noqa: BLE001 - then its text will do
            pass
        return {"value": repr(value)[:MOST_TEXT]}

    def define(self, code: str) -> dict[str, Any]:
        """Define tools; the one called final_answer ends the agent's work."""
        name = "<tools>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        exec(compile(code, name, "exec", dont_inherit=True), self.names)
        given = self.names.get("final_answer")
        if given is not None and not isinstance(given, types.FunctionType):
            self.names["final_answer"] = ends_with(given)
        return {}

    def receive(self, decoder: str, values: str) -> dict[str, Any]:
        """Take variables, in the form of smolagents and with its own code to read them."""
        names: dict[str, Any] = {}
        exec(decoder, names)
        self.names.update(names["_deserialize"](values))
        return {}

    def lacking(self, modules: list[str]) -> dict[str, Any]:
        """Those of the modules that cannot be imported here."""
        return {"value": [name for name in modules if importlib.util.find_spec(name) is None]}


def ends_with(tool: Any) -> Any:
    """A function of the agent's whose value is the final answer."""

    def final_answer(*args: Any, **kwargs: Any) -> None:
        encoded = encode(tool(*args, **kwargs))
        size = len(json.dumps(encoded))
        if size > MOST_FINAL:
            raise ValueError(f"the final answer has {size} bytes, more than {MOST_FINAL}")
        raise Final(encoded)

    return final_answer


class TimeLimit:
    """Raises OutOfTime in the agent's code, and goes on doing so until it has left it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        def out_of_time(number: int, frame: object) -> None:
            raise OutOfTime

        signal.signal(signal.SIGALRM, out_of_time)
        # Again and again: an exception in a destructor, or in a catch-all, comes to nothing.
        signal.setitimer(signal.ITIMER_REAL, self.seconds, AGAIN_SECONDS)

    def __exit__(self, *exc: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


def described(error: BaseException) -> str:
    """The error with its traceback, from the agent's own code on."""
    steps = error.__traceback__
    while steps is not None and steps.tb_frame.f_code.co_filename == __file__:
        steps = steps.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, steps))[-MOST_TEXT:]
    except Exception:  # noqa: BLE001 - of the error's own __str__
        return type(error).__name__


def main() -> None:
    """Answer requests until there are no more."""
    requests, replies, log = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"), os.dup(2)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    interpreter, process = Interpreter(), os.getpid()
    for line in requests:
        request = json.loads(line)
        reply = interpreter.answer(request)
        if os.getpid() != process:
            os._exit(0)  # a fork of the agent's, which has come to the end of its step
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os.write(log, request["mark"].encode())
        reply["mark"] = request["mark"]
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()
    os._exit(0)
