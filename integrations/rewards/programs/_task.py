"""A task of `Program`: its keys and those of its cases."""

import functools
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from sandboxkit.integrations.rewards._checkers import (
    OURS,
    AppsChecker,
    ExactChecker,
    FloatsChecker,
    FunctionChecker,
    HostChecker,
    LinesChecker,
    LiveCodeBenchChecker,
    TokensChecker,
    UnorderedLinesChecker,
)
from sandboxkit.integrations.rewards._keys import Keys, Text
from sandboxkit.integrations.rewards.programs._languages import Language
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram

NAMED: dict[str, Callable[[], HostChecker]] = {
    "exact": ExactChecker,
    "lines": LinesChecker,
    "tokens": TokensChecker,
    "floats": FloatsChecker,
    "unordered_lines": UnorderedLinesChecker,
    "live_code_bench": LiveCodeBenchChecker,
    "apps": AppsChecker,
    "code_contests": functools.partial(FloatsChecker, 0.0, math.nextafter(1e-5, 0), True),
}
"""The checkers that a task can select by name."""
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")


# Any: a value of a user's data set.
def _checker(value: Any) -> Any:
    ours = isinstance(value, (JudgeProgram, FunctionChecker, Mapping, *OURS))
    named = isinstance(value, str) and value in NAMED
    if not ours and not named and not (callable(value) and isinstance(value, Hashable)):
        raise AssertionError(
            f"give {', '.join(map(repr, NAMED))}, a function of (stdin, output, expected), or a JudgeProgram"
        )
    return value


def _interactor(value: Any) -> Any:
    if not isinstance(value, JudgeProgram | Mapping):
        raise AssertionError("give a JudgeProgram with the interactor's source")
    return value


def _arguments(value: Sequence[str]) -> Sequence[str]:
    if any("\0" in each for each in value):
        raise AssertionError("give a list of text without NUL")
    return value


def _files(value: Mapping[str, str]) -> Mapping[str, str]:
    if not all(map(_FILE.fullmatch, value)):
        raise AssertionError("give an object that maps plain file names to text")
    return value


Files = Annotated[Mapping[Text, Text], AfterValidator(_files)]
FromZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ProgramCaseKeys(Keys):
    """One case: the program's input and its expected output."""

    grader = "Program"
    words: ClassVar[Mapping[str, str]] = {
        "input": "stdin",
        "output": "stdout",
        "expected": "stdout",
        "expected_output": "stdout",
        "answer": "stdout",
        "arguments": "args",
        "argv": "args",
        "points": "weight",
        "score": "weight",
        "rel_tol": "it in the task, for all cases",
        "abs_tol": "it in the task, for all cases",
        "checker": "it in the task, for all cases",
        "time_limit": "it in the task, for all cases",
    }

    stdin: Text = Field(
        "", description="the program's input; with an interactor, the interactor's input"
    )
    stdout: Text | None = Field(
        None, description="the expected output; with an interactor, the expected answer"
    )
    args: Annotated[Sequence[Text], AfterValidator(_arguments)] = Field(
        (), description="the program's arguments"
    )
    files: Files = Field({}, description="files in the program's folder, by name")
    outputs: Files = Field({}, description="files that the program must write, by name")
    weight: FromZero = Field(
        1.0, description="the case's share of the score with partial=True, from 0"
    )
    name: Text = Field("", description="the case's name in the verdict's parts")


class ProgramKeys(Keys):
    """A task for which a submission in any language is run as a program."""

    grader = "Program"
    unrelated = frozenset(("class", "name", "test_id", "title", "trust"))
    words: ClassVar[Mapping[str, str]] = {
        "inputs": "cases",
        "outputs": "cases",
        "input_output": "cases, as load_taco or load_apps makes them",
        "public_tests": "cases, as load_code_contests makes them",
        "private_tests": "cases, as load_code_contests makes them",
        "public_test_cases": "cases, as load_live_code_bench makes them",
        "private_test_cases": "cases, as load_live_code_bench makes them",
        "official_tests": "cases, as load_codeforces makes them",
        "entry_point": "it in a task for HostCompare, which calls functions",
        "test_case": "cases",
        "test_cases": "cases",
        "testcases": "cases",
        "timeout": "time_limit",
        "time_limit_ms": "time_limit, in seconds",
        "memory_limit": "memory_limit_mb",
        "memory_mb": "memory_limit_mb",
        "lang": "language",
        "programming_language": "language",
        "rtol": "rel_tol",
        "atol": "abs_tol",
        "eps": "abs_tol",
        "epsilon": "abs_tol",
        "tolerance": "rel_tol or abs_tol",
        "test": "tests",
        "validator": "checker",
        "output_validator": "checker",
        "special_judge": "checker",
        "spj": "checker",
        "partial": "the grader's option partial=True",
        "input_file": "files in each case",
        "output_file": "outputs in each case",
        "input_mode": "files and outputs in each case",
        "interactive": "interactor",
        "is_interactive": "interactor",
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "interactive": False,
        "is_interactive": False,
        "input_mode": "stdio",
    }

    cases: Sequence[ProgramCaseKeys] = Field(
        (), description="a list of objects with the keys below"
    )
    language: str | Language | None = Field(
        None, description="such as 'cpp17', if it differs from the grader's"
    )
    time_limit: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="CPU seconds of one case for a native program; other languages get a multiple. Default: the grader's",
    )
    memory_limit_mb: Annotated[int, Field(gt=0)] | None = Field(
        None,
        description="memory limit of one case in MiB; the memory that a language's runtime needs is added. Default: the grader's",
    )
    checker: Annotated[Any, AfterValidator(_checker)] = Field(
        None,
        description="decides whether an output is right: 'lines' (the default), 'exact', 'tokens', 'floats', "
        "'unordered_lines', those of data sets ('live_code_bench', 'apps', 'code_contests'), a function, or a "
        "`JudgeProgram`",
    )
    rel_tol: FromZero | None = Field(
        None,
        description="relative tolerance for numbers in the output; selects the checker 'floats'",
    )
    abs_tol: FromZero | None = Field(
        None,
        description="absolute tolerance for numbers in the output; selects the checker 'floats'",
    )
    interactor: Annotated[Any, AfterValidator(_interactor)] = Field(
        None, description="a `JudgeProgram` that the submission talks to"
    )
    preamble: Text = Field(
        "", description="imports that come before a submission in Python; other languages have none"
    )
    tests: Text = Field(
        "",
        description="instead of cases: source that is appended to the submission, as in MultiPL-E; exit status 0 passes. A submission can fool it",
    )
