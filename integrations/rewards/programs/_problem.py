"""Checks a task of `Program` and converts it to a `Problem`; an error names the first mistake."""

import math
import re
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards._checkers import (
    OURS,
    ExactChecker,
    FloatsChecker,
    FunctionChecker,
    HostChecker,
    LinesChecker,
    TokensChecker,
    UnorderedLinesChecker,
)
from sandboxkit.integrations.rewards._task import instead, is_list, seems_meant, shown
from sandboxkit.integrations.rewards.programs import _keys
from sandboxkit.integrations.rewards.programs._execute import ProgramInput
from sandboxkit.integrations.rewards.programs._keys import KeyKind
from sandboxkit.integrations.rewards.programs._languages import Language, language_of
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_KNOWN_COLUMNS = frozenset(("class", "name", "test_id", "title"))
"""Data set columns that resemble keys but are unrelated."""

NAMED: dict[str, Callable[[], HostChecker]] = {
    "exact": ExactChecker,
    "lines": LinesChecker,
    "tokens": TokensChecker,
    "floats": FloatsChecker,
    "unordered_lines": UnorderedLinesChecker,
}
"""The checkers that a task can select by name."""


@dataclass(frozen=True, slots=True)
class JudgedCase:
    """One case: the program's input and its expected output."""

    name: str
    given: ProgramInput
    stdout: bytes | None
    """The expected output; None if only files are compared, or an interactor needs none."""
    outputs: Mapping[str, bytes]
    """Expected content of the files that the program must write, by name."""
    weight: float


@dataclass(frozen=True, slots=True)
class Problem:
    """A checked task."""

    language: Language
    cases: tuple[JudgedCase, ...]
    checker: HostChecker | JudgeProgram
    interactor: JudgeProgram | None
    time_limit: float | None
    """CPU seconds of one case for a native program; None: the grader's limit applies."""
    memory_limit_mb: int | None
    tests: str
    """Source that is appended to the submission; empty for a problem with cases."""


def problem_of(
    task: Mapping[str, Any],  # Any: a row of a user's data set
    language: str | Language | None,
    ignore: Collection[str] = (),
) -> Problem:
    """Check a task and convert it. Raises ConfigurationError that names the first mistake.

    `language` is the default for a task that has none. Columns that are None or in `ignore` are left
    out. Any other unknown column is ignored, unless it resembles a key or is another data set's name
    for one.
    """
    own = {name: value for name, value in task.items() if value is not None and name not in ignore}
    for name, value in own.items():
        if name not in _keys.TASK_KEYS:
            _refuse_alike(name, value)
        else:
            _check(_keys.TASK_KEYS[name], name, value, "the task's")
    asked = own.get("language", language)
    if asked is None:
        raise ConfigurationError(
            "the task has no language: give it one, such as 'cpp17', or make Program('cpp17')"
        )
    tests = own.get("tests", "")
    if tests and ("cases" in own or own.get("trust") != "shared"):
        raise ConfigurationError(
            "the task's tests run in the submission's process: give them trust='shared', and no cases"
        )
    if not tests and own.get("trust"):
        raise ConfigurationError(
            "the task has trust='shared' but no tests, the only key that needs it"
        )
    interactor = _judge_program(own.get("interactor"))
    cases = tuple(
        _case(each, number, interactive=interactor is not None)
        for number, each in enumerate(own.get("cases", ()), 1)
    )
    if not cases and not tests:
        raise ConfigurationError(
            "the task has no cases: give a list of objects with stdin and stdout"
        )
    if sum(case.weight for case in cases) <= 0 and cases:
        raise ConfigurationError("every case has the weight 0")
    return Problem(
        language_of(asked),
        cases,
        _checker(own),
        interactor,
        own.get("time_limit"),
        own.get("memory_limit_mb"),
        tests,
    )


def _checker(task: Mapping[str, Any]) -> HostChecker | JudgeProgram:
    given = task.get("checker")
    tolerances = {name: float(task[name]) for name in ("rel_tol", "abs_tol") if name in task}
    if tolerances:
        if given not in (None, "floats"):
            raise ConfigurationError(
                f"the task has {' and '.join(tolerances)} and checker={shown(given)}, which has no "
                "tolerance: use checker='floats'"
            )
        return FloatsChecker(tolerances.get("rel_tol", 0.0), tolerances.get("abs_tol", 0.0))
    if given is None:
        return LinesChecker()
    if isinstance(given, str):
        return NAMED[given]()
    if isinstance(given, Mapping):
        return _judge_program(given) or LinesChecker()
    if isinstance(given, (JudgeProgram, FunctionChecker, *OURS)):
        return given
    return FunctionChecker(given)


def _judge_program(value: JudgeProgram | Mapping[str, Any] | None) -> JudgeProgram | None:
    """Convert a mapping, as a row of JSON has it, to a JudgeProgram; return other values unchanged."""
    if not isinstance(value, Mapping):
        return value
    unknown = sorted(value.keys() - {"source", "files", "language", "most"})
    if unknown or "source" not in value:
        raise ConfigurationError(
            f"{shown(dict(value))} is no checker or interactor: give source, and perhaps files, "
            "language and most"
        )
    return JudgeProgram(**value)


def _case(case: Any, number: int, *, interactive: bool) -> JudgedCase:
    where = f"case {number}"
    if not isinstance(case, Mapping):
        raise ConfigurationError(
            f"{where} is {shown(case)}, a {type(case).__name__}: give an object with stdin and stdout"
        )
    own = {name: value for name, value in case.items() if value is not None}
    for name, value in own.items():
        if name not in _keys.CASE_KEYS:
            raise ConfigurationError(
                f"{where} has a key {name!r}, which Program does not read: "
                f"{instead(name, _keys.CASE_WORDS, _keys.CASE_KEYS)}"
            )
        _check(_keys.CASE_KEYS[name], name, value, f"{where}'s")
    if "stdout" not in own and not own.get("outputs") and not interactive:
        raise ConfigurationError(
            f"{where} has no expected output: give stdout, or outputs with the files it must write"
        )
    if interactive and (own.get("outputs") or own.get("args") or own.get("files")):
        raise ConfigurationError(
            f"{where} has outputs, args or files, which a problem with an interactor does not use"
        )
    stdout = own.get("stdout")
    return JudgedCase(
        own.get("name", str(number)),
        ProgramInput(
            _bytes(own.get("stdin", "")),
            tuple(own.get("args", ())),
            {name: _bytes(text) for name, text in own.get("files", {}).items()},
            tuple(own.get("outputs", ())),
        ),
        None if stdout is None else _bytes(stdout),
        {name: _bytes(text) for name, text in own.get("outputs", {}).items()},
        float(own.get("weight", 1.0)),
    )


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _check(key: tuple[KeyKind, str], name: str, value: Any, whose: str) -> None:
    kind, meaning = key
    if not _GOOD[kind](value):
        raise ConfigurationError(
            f"{whose} {name}={shown(value)} is a {type(value).__name__}: give "
            f"{_keys.REMEDIES[kind]} ({meaning})"
        )


def _refuse_alike(name: str, value: Any) -> None:
    if name in _KNOWN_COLUMNS or value in ("", [], {}, ()):
        return
    if seems_meant(name, _keys.TASK_WORDS, _keys.TASK_KEYS):
        raise ConfigurationError(
            f"the task has a key {name!r} ({shown(value)}), which Program does not read: "
            f"{instead(name, _keys.TASK_WORDS, _keys.TASK_KEYS)} (if grading does not need this "
            f"column of the data set: Program(ignore=({name!r},)))"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _is_checker(value: Any) -> bool:
    if isinstance(value, str):
        return value in NAMED
    if isinstance(value, (JudgeProgram, FunctionChecker, *OURS, Mapping)):
        return True
    return callable(value) and isinstance(value, Hashable)


def _is_files(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(text, str) and _NAME.fullmatch(name)
        for name, text in value.items()
    )


_GOOD: dict[KeyKind, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "name": lambda value: isinstance(value, str | Language),
    "cases": is_list,
    "number": _is_number,
    "from 0": lambda value: _is_number(value) or (value == 0 and not isinstance(value, bool)),
    "whole": lambda value: _is_number(value) and isinstance(value, int),
    "checker": _is_checker,
    "interactor": lambda value: isinstance(value, JudgeProgram | Mapping),
    "texts": lambda value: (
        is_list(value) and all(isinstance(each, str) and "\0" not in each for each in value)
    ),
    "files": _is_files,
    "trust": lambda value: value == "shared",
}
