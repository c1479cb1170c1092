"""Checks a task of `Program` and converts it to a `Problem`; an error names the first mistake."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards._checkers import (
    OURS,
    FloatsChecker,
    FunctionChecker,
    HostChecker,
    LinesChecker,
)
from sandboxkit.integrations.rewards._keys import checked, shown
from sandboxkit.integrations.rewards.programs._execute import ProgramInput
from sandboxkit.integrations.rewards.programs._languages import Language, language_of
from sandboxkit.integrations.rewards.programs._task import NAMED, ProgramCaseKeys, ProgramKeys
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram


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
    preamble: str
    """Imports that come before a submission in Python."""
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
    row = checked(ProgramKeys, task, ignore)
    own = ProgramKeys.model_validate(
        {name: row[name] for name in ProgramKeys.model_fields if name in row}
    )
    asked = own.language or language
    if asked is None:
        raise ConfigurationError(
            "the task has no language: give it one, such as 'cpp17', or make Program('cpp17')"
        )
    if own.tests and own.cases:
        raise ConfigurationError("the task has cases and tests: give one of them")
    interactor = _judge_program(own.interactor)
    if interactor is not None and interactor.protocol == "printed":
        raise ConfigurationError(
            "the interactor has protocol='printed', which is for checkers: use 'testlib' or 'icpc'"
        )
    cases = tuple(
        _case(each, number, interactive=interactor is not None)
        for number, each in enumerate(own.cases, 1)
    )
    if not cases and not own.tests:
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
        own.time_limit,
        own.memory_limit_mb,
        own.preamble,
        own.tests,
    )


def _checker(task: ProgramKeys) -> HostChecker | JudgeProgram:
    given = task.checker
    if task.rel_tol is not None or task.abs_tol is not None:
        if given not in (None, "floats"):
            raise ConfigurationError(
                f"the task has rel_tol or abs_tol and checker={shown(given)}, which has no tolerance: use "
                "checker='floats'"
            )
        return FloatsChecker(task.rel_tol or 0.0, task.abs_tol or 0.0)
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
    unknown = sorted(value.keys() - {"source", "files", "language", "most", "protocol", "args"})
    if unknown or "source" not in value:
        raise ConfigurationError(
            f"{shown(dict(value))} is no checker or interactor: give source, and perhaps files, "
            "language, most, protocol and args"
        )
    return JudgeProgram(**value)


def _case(own: ProgramCaseKeys, number: int, *, interactive: bool) -> JudgedCase:
    where = f"case {number}"
    if own.stdout is None and not own.outputs and not interactive:
        raise ConfigurationError(
            f"{where} has no expected output: give stdout, or outputs with the files it must write"
        )
    if interactive and (own.outputs or own.args or own.files):
        raise ConfigurationError(
            f"{where} has outputs, args or files, which a problem with an interactor does not use"
        )
    return JudgedCase(
        own.name or str(number),
        ProgramInput(
            _bytes(own.stdin),
            tuple(own.args),
            {name: _bytes(text) for name, text in own.files.items()},
            tuple(own.outputs),
        ),
        None if own.stdout is None else _bytes(own.stdout),
        {name: _bytes(text) for name, text in own.outputs.items()},
        float(own.weight),
    )


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
