"""A table of the keys that a task and its cases may have."""

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
    "text", "text or messages", "list of text", "list of names", "names or yes", "list of cases",
    "number", "yes or no", "isolated or shared", "python", "list", "mapping", "value",
]  # fmt: skip
"""The type of a value; `_task.py` has a check for each."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key that a grader reads."""

    name: str
    kind: Kind
    meaning: str
    needs: tuple[str, ...] = ()
    """The task must also have one of these keys; without it this key would have no effect."""
    default: Any = None  # Any: of the kind
    """The default. A key with this value needs no other key."""


_JUDGED = ("test", "tests", "test_list")

TASK_KEYS = (
    Key("cases", "list of cases", "arguments and results, or standard input and output"),
    Key("strict", "yes or no", "whether 1, 1.0 and True differ in cases", ("cases",), True),
    Key("rel_tol", "number", "relative tolerance for floats in cases", ("cases",), 0),
    Key("abs_tol", "number", "absolute tolerance for floats in cases", ("cases",), 0),
    Key("entry_point", "text", "the function that is called"),
    Key("prompt", "text or messages", "the model's prompt; code in it is the tests' context"),
    Key("test", "text", "source that defines check(candidate)", ("entry_point",)),
    Key("tests", "text", "source of a module with functions test_...()"),
    Key("test_list", "list of text", "lines such as 'assert f(1) == 2'"),
    Key("test_setup_code", "text", "code that runs before the tests"),
    Key("module", "text", "the name under which tests import the submission"),
    Key("operators", "list of names", "classes whose operators are trusted", _JUDGED),
    Key("classes", "list of names", "classes whose objects stay live in the tests", _JUDGED),
    Key("names", "list of names", "names that the submission must define", _JUDGED),
    Key("in_place", "names or yes", "functions that change their arguments", _JUDGED, False),
    Key(
        "varies",
        "names or yes",
        "functions whose results for equal calls may differ",
        _JUDGED,
        False,
    ),
    Key("trust", "isolated or shared", "where the tests run", _JUDGED, "isolated"),
    Key("banned_patterns", "list of text", "names that a submission must not use"),
    Key("language", "python", "the language of the submission"),
)

CASE_KEYS = (
    Key("args", "list", "positional arguments", ("expected",)),
    Key("kwargs", "mapping", "keyword arguments", ("expected",)),
    Key("expected", "value", "the result"),
    Key("stdin", "text", "the program's standard input", ("stdout",)),
    Key("stdout", "text", "the expected standard output", ("stdin",)),
    Key("strict", "yes or no", "instead of the task's"),
    Key("rel_tol", "number", "instead of the task's"),
    Key("abs_tol", "number", "instead of the task's"),
)


@dataclass(frozen=True, slots=True)
class Reads:
    """A grader, and the keys that it does not read."""

    grader: str
    unread: frozenset[str] = field(default_factory=frozenset)
    """Keys that affect `HostCompare` but that this grader would ignore."""


_TOLERANCES = ("strict", "rel_tol", "abs_tol")
HOST_COMPARE = Reads("HostCompare")
EXIT_CODE = Reads("ExitCode", frozenset(("cases", "test", "tests", "module", *_TOLERANCES)))
PASS_RATE = Reads("PassRate", EXIT_CODE.unread)

KNOWN_COLUMNS = frozenset(("class", "mode", "name", "n_cases", "texts"))
"""Data set columns that resemble our keys but are unrelated."""

CASE_WORDS = {
    "input": "stdin, or args",
    "inputs": "args",
    "output": "stdout, or expected",
    "expected_output": "expected, or stdout",
    "result": "expected",
    "arguments": "args",
    "parameters": "args",
    "tolerance": "rel_tol or abs_tol",
    "rtol": "rel_tol",
    "atol": "abs_tol",
}
"""Other graders' names for the keys of a case, and what to write instead."""

OTHER_WORDS = {
    "inputs": "cases",
    "outputs": "cases",
    "expected": "cases, each with its own expected",
    "stdin": "cases, each with its own stdin",
    "stdout": "cases, each with its own stdout",
    "args": "cases, each with its own args",
    "test_case": "cases",
    "test_cases": "cases, or test_list for lines such as 'assert f(1) == 2'",
    "testcases": "cases",
    "tolerance": "rel_tol or abs_tol",
    "rel_tolerance": "rel_tol",
    "abs_tolerance": "abs_tol",
    "tol": "rel_tol or abs_tol",
    "rtol": "rel_tol",
    "atol": "abs_tol",
    "eps": "abs_tol",
    "epsilon": "abs_tol",
    "strict_mode": "strict",
    "test_imports": "test_setup_code, one import a line",
    "imports": "test_setup_code",
    "setup": "test_setup_code",
    "setup_code": "test_setup_code",
    "function": "entry_point",
    "function_name": "entry_point",
    "fn_name": "entry_point",
    "func_name": "entry_point",
    "check": "test",
    "unit_tests": "tests",
    "unittests": "tests",
    "assertions": "test_list",
    "asserts": "test_list",
    "lang": "language",
    "programming_language": "language",
    "timeout": "the grader's limits=Limits(timeout=...)",
    "time_limit": "the grader's limits=Limits(timeout=...)",
    "memory_limit": "the grader's limits=Limits(memory_mb=...)",
    "memory_mb": "the grader's limits=Limits(memory_mb=...)",
    "partial": "the grader's option partial=True",
    "checker": "tests, which can compare in any way",
    "banned": "banned_patterns",
    "forbidden": "banned_patterns",
}
"""Other graders' and data sets' names for the keys of a task, and what to write instead."""
