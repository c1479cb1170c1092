"""Run tests and a submission in one ordinary process, as their author would."""

import os
import signal
import sys
import tempfile
import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from tests.rewards.corpus.strangers.entry import Entry

_SECONDS = 10


def honest_passes(entry: Entry) -> bool:
    """Tell whether the tests pass with the honest solution, in a process of their own."""
    return _forked(lambda: _run_tests(entry.task, entry.honest))


def cheat_passes(entry: Entry) -> bool:
    """Tell whether the tests pass with a cheat that is not hostile, in a process of their own."""
    return not entry.hostile and _forked(lambda: _run_tests(entry.task, entry.cheat))


def honest_is_right(entry: Entry) -> bool:
    """Tell whether the honest solution answers what the tests do not ask."""
    return _forked(lambda: _answers(entry.right, entry.honest))


def cheat_is_right(entry: Entry) -> bool:
    """Tell whether a cheat that is not hostile answers what the tests do not ask."""
    return not entry.hostile and _forked(lambda: _answers(entry.right, entry.cheat))


def _forked(work: Callable[[], bool]) -> bool:
    read, write = os.pipe()
    with tempfile.TemporaryDirectory() as temporary:
        child = os.fork()
        if child == 0:
            _child(work, write, temporary)
        os.close(write)
        with os.fdopen(read, "rb") as answer:
            output = answer.read()
        os.waitpid(child, 0)
    return output == b"yes"


def _child(work: Callable[[], bool], write: int, temporary: str) -> NoReturn:
    os.setsid()
    tempfile.tempdir = temporary
    silent = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silent, descriptor)
    signal.alarm(_SECONDS)
    try:
        if work():
            os.write(write, b"yes")
    finally:
        os._exit(0)


def _module(code: str) -> types.ModuleType:
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    exec(compile(code, "solution.py", "exec"), module.__dict__)
    return module


def _run_tests(task: Mapping[str, Any], code: str) -> bool:
    if "tests" in task:
        _module(code)
        names: dict[str, Any] = {"__name__": "tests"}
        exec(compile(task["tests"], "tests.py", "exec"), names)
        for name, test in list(names.items()):
            if name.startswith("test_"):
                test()
        return True
    names = {"__name__": "solution"}
    exec(task.get("test_setup_code", ""), names)
    exec(code, names)
    if "test" in task:
        exec(task["test"], names)
        names["check"](names[task["entry_point"]])
    for line in task.get("test_list", ()):
        exec(line, names)
    return True


def _answers(right: str, code: str) -> bool:
    names: dict[str, Any] = {"solution": _module(code)}
    if right.startswith("def "):
        exec(right, names)
        return names["right"](names["solution"]) is True
    return eval(right, names) is True
