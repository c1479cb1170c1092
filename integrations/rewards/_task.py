"""A task of `HostCompare`: its keys and those of its cases."""

import ast
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards._keys import Keys, Row, Text, checked, shown
from sandboxkit.integrations.rewards._parse import parse_or_none
from sandboxkit.integrations.rewards._values import Comparison

_TESTS = ("test", "tests", "test_list")
_Tolerance = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _python(language: str) -> str:
    if language.lower() not in ("py", "python", "python3"):
        raise AssertionError("give 'python', the only language that this grader runs")
    return language


def _names(names: bool | Sequence[str]) -> bool | Sequence[str]:
    if not isinstance(names, bool) and not all(each.isidentifier() for each in names):
        raise AssertionError("give true, or a list of names of functions")
    return names


class CaseKeys(Keys):
    """One case: arguments and a result, or standard input and output."""

    grader = "HostCompare"
    words: ClassVar[Mapping[str, str]] = {
        "input": "stdin, or args",
        "inputs": "args",
        "output": "stdout, or expected",
        "expected_output": "expected, or stdout",
        "result": "expected",
        "arguments": "args",
        "parameters": "args",
        "tolerance": "rel_tol or abs_tol",
    }

    args: Sequence[Any] = Field((), description="positional arguments")
    kwargs: Mapping[str, Any] = Field({}, description="keyword arguments")
    expected: Any = Field(None, description="the result")
    also: Sequence[Any] = Field((), description="other results that are right")
    stdin: Text = Field("", description="the program's standard input")
    stdout: Text = Field("", description="the expected standard output")
    strict: bool = Field(True, description="instead of the task's")
    rel_tol: _Tolerance = Field(0.0, description="instead of the task's")
    abs_tol: _Tolerance = Field(0.0, description="instead of the task's")

    @model_validator(mode="before")
    @classmethod
    def _has_a_result(cls, row: Any) -> Any:
        if not isinstance(row, Mapping):
            return row
        given = {name for name, value in row.items() if value is not None}
        function = "expected" in row and not given & {"stdin", "stdout"}
        program = {"stdin", "stdout"} <= given
        program = program and not given & {"args", "kwargs", "expected", "also"}
        if not function and not program:
            raise ValueError(f"is {shown(row)}: give args and expected, or stdin and stdout")
        return row


class TaskKeys(Keys):
    """A task for which a submission in Python is tested."""

    grader = "HostCompare"
    unrelated = frozenset(("class", "mode", "name", "n_cases", "texts"))
    words: ClassVar[Mapping[str, str]] = {
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
        "eps": "abs_tol",
        "epsilon": "abs_tol",
        "strict_mode": "strict",
        "test_imports": "test_setup_code, one import a line",
        "imports": "test_setup_code",
        "setup": "test_setup_code",
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
        "trust": "nothing: the grader decides it from the tests",
        "checker": "tests, which can compare in any way",
        "banned": "banned_patterns",
        "forbidden": "banned_patterns",
    }

    needs: ClassVar[Mapping[str, Collection[str]]] = {
        "strict": ("cases",),
        "rel_tol": ("cases",),
        "abs_tol": ("cases",),
        "tuples": ("cases",),
        "test": ("entry_point",),
        "in_place": _TESTS,
        "stateful": _TESTS,
    }

    cases: Sequence[CaseKeys] = Field((), description="arguments and results, or input and output")
    strict: bool = Field(True, description="whether 1, 1.0 and True differ in cases")
    rel_tol: _Tolerance = Field(0.0, description="relative tolerance for floats in cases")
    abs_tol: _Tolerance = Field(0.0, description="absolute tolerance for floats in cases")
    tuples: Annotated[int, Field(ge=0)] = Field(
        0,
        description="to which depth a tuple equals an expected list in cases; 1: the result itself",
    )
    entry_point: Text = Field("", description="the function that is called")
    preamble: Text = Field("", description="imports that come before the submission")
    prompt: Text | Sequence[Any] = Field(
        "",
        description="the model's prompt, text or messages; its imports and helpers come before the submission and the tests",
    )
    test: Text = Field("", description="source that defines check(candidate)")
    tests: Text = Field("", description="source of a module with functions test_...()")
    test_list: Sequence[Text] = Field((), description="lines such as 'assert f(1) == 2'")
    test_setup_code: Text = Field("", description="code that runs before the tests")
    module: Text = Field("solution", description="the name under which tests import the submission")
    in_place: Annotated[bool | Sequence[str], AfterValidator(_names)] = Field(
        False, description="functions that change their arguments, or true for all"
    )
    stateful: bool = Field(False, description="whether calls share state")
    banned_patterns: Sequence[Text] = Field((), description="names that a submission must not use")
    language: Annotated[str, AfterValidator(_python)] = Field(
        "python", description="the language of the submission"
    )

    @model_validator(mode="after")
    def _tests_something(self) -> Self:
        if self.test_list and not any(map(_tests_something, self.test_list)):
            raise ValueError(
                f"has a test_list={shown(self.test_list)} that tests nothing: give lines such as 'assert f(1) == 2'"
            )
        return self


class PreparedTask(dict[str, Any]):
    """A task that its grader has checked and taken apart already, once for many submissions."""

    parts: Any = ()  # what the grader made of its tests


def prepared(task: Row, ignore: Collection[str] = ()) -> PreparedTask:
    """Return a checked task without lines that test nothing. Raises ConfigurationError, as `checked` does."""
    own = PreparedTask(checked(TaskKeys, task, ignore))
    if "test_list" in own:
        own["test_list"] = [line for line in own["test_list"] if _tests_something(line)]
    return own


def _tests_something(line: str) -> bool:
    """Return whether source is more than comments, constants and `pass`; what does not parse is."""
    tree = parse_or_none(line.strip())
    return tree is None or not all(
        isinstance(node, ast.Pass)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in tree.body
    )


def no_function(entry: object) -> ConfigurationError:
    """Return the error for an `entry_point` that is no function's name, as LeetCode's `Solution().f`."""
    call = f"{entry}(...)" if isinstance(entry, str) and entry else "f(...)"
    return ConfigurationError(
        f"the task's entry_point={entry!r} is not a function's name: give one, or a test_list with lines such "
        f"as 'assert {call} == ...'"
    )


def comparison_of(task: Row, case: Row) -> Comparison:
    """Return a case's comparison. A missing `strict`, `rel_tol` or `abs_tol` is taken from the task."""
    names = ("strict", "rel_tol", "abs_tol", "tuples")
    given = [*task.items(), *case.items()]
    return Comparison(**{name: each for name, each in given if name in names and each is not None})
