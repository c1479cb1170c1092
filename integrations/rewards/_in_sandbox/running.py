"""Run tests of every form: functions, coroutines, unittest's cases and plain classes. Runs in a sandbox."""

from __future__ import annotations

import builtins
import contextlib
import sys
import traceback
import types
from typing import Any  # Any: the tests' names

FILE = "tests.py"
_TEXT = 500
_SHOWN = (bool, float, int, str, type(None))


def define(names: dict[str, Any], sources: list[str]) -> None:
    """Run the sources that come before the tests."""
    for source in sources:
        exec(compile(source, FILE, "exec", dont_inherit=True), names)


def run_test(names: dict[str, Any], test: str) -> None:
    """Run a test to its end: source, or a name that `define` has made, such as `test_add` or `Cases.test_add`."""
    *owners, name = test.split(".")
    if not all(map(str.isidentifier, (*owners, name))):
        define(names, [test])
        return
    module = sys.modules["tests"]
    if not owners:
        parts = [(names, "module", module), (names, "function", names[name])]
        _between(parts, names[name])
        return
    owner = names[owners[0]]
    for each in owners[1:]:
        owner = getattr(owner, each)
    if hasattr(owner, "defaultTestResult"):
        _run_case(owner(name), name)
    else:
        instance = owner()
        members = {each: getattr(instance, each) for each in dir(instance) if each[:2] != "__"}
        method = members[name]
        parts = [(names, "module", module), (members, "class", owner)]
        _between([*parts, (members, "method", method)], method)


def _between(parts: list[Any], work: Any) -> None:
    """Run a test between the fixtures of pytest's xunit style, which may take an argument."""
    with contextlib.ExitStack() as stack:
        for names, kind, argument in parts:
            _fixture(names.get(f"setup_{kind}"), argument)
            stack.callback(_fixture, names.get(f"teardown_{kind}"), argument)
        value = work()
        if type(value) is types.CoroutineType:  # a test may be an async function
            import asyncio

            asyncio.run(value)


def _fixture(function: Any, argument: Any) -> None:
    if function is not None:
        takes = function.__code__.co_argcount - hasattr(function, "__self__")
        function(*[argument][:takes])


def _run_case(case: Any, name: str) -> None:
    import unittest

    result = case.defaultTestResult()
    unittest.TestSuite([case]).run(result)  # with the fixtures of class and module
    for _, text in (*result.errors, *result.failures):
        raise AssertionError(text.strip().rpartition("\n")[2])
    skips = any(getattr(each, "__unittest_skip__", False) for each in (case, getattr(case, name)))
    if result.skipped and skips:
        return  # by a decorator of the tests
    if result.testsRun != 1 or result.skipped or result.unexpectedSuccesses:
        raise AssertionError(f"{case} did not run to its end")


def problem(work: Any) -> list[str]:
    """Run a test; return its outcome, "passed", "failed" or "oom", and a detail."""
    try:
        work()
    except MemoryError:
        return ["oom", "MemoryError"]
    except BaseException as error:  # noqa: BLE001 - SkipTest and SystemExit fail a test as well
        frames = traceback.extract_tb(error.__traceback__)
        lines = [each.lineno for each in frames if each.filename == FILE]
        where = f"line {lines[-1]}: " if lines else ""
        text = ", ".join(str(each) for each in error.args if type(each) in _SHOWN)
        return ["failed", f"{where}{type(error).__name__}: {text}"[:_TEXT]]
    return ["passed", ""]


def module_of_tests(names: dict[str, Any]) -> dict[str, Any]:
    """Return the globals of a new module `tests` with these names."""
    tests = sys.modules["tests"] = types.ModuleType("tests")
    tests.__dict__.update(names, __builtins__=builtins, __file__=FILE)
    return tests.__dict__
