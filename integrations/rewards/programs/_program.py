"""The grader of whole programs in any language: compiles once, runs each case, compares on the host."""

import ast
import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sandboxkit import ConfigurationError, Operation, Session
from sandboxkit.integrations.rewards._extract import extract_code, note_fences
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._parse import parse_or_none
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict
from sandboxkit.integrations.rewards.programs._compile import build
from sandboxkit.integrations.rewards.programs._evaluate import evaluate
from sandboxkit.integrations.rewards.programs._execute import ProgramInput, execute
from sandboxkit.integrations.rewards.programs._languages import Language, language_of
from sandboxkit.integrations.rewards.programs._problem import Problem, problem_of

_MEMORY_MB = 1024
_OWN_MB = 32
"""Memory in MiB for a sandbox's agent and the program's file, added to a task's memory limit."""
_DEFAULT = Limits(memory_mb=_MEMORY_MB, output_limit=16 << 20)


@dataclass(frozen=True, slots=True)
class Program:
    """Grades programs that read stdin and print, in any language.

    The submission is compiled once, in a sandbox that holds only its source. Each case then runs in a
    pristine sandbox that holds the program and the case's input: no file or process of one case is
    there in another, and no expected output enters any sandbox of the submission. In a session from
    `grading_session` these sandboxes are kept, and reset between two runs.

    A task has

    - `cases`, a list of objects with `stdin` and `stdout`, and perhaps `args`, `files` (in the
      program's folder, by name), `outputs` (files that it must write), `weight` and `name`;
    - `language`, if it differs from the grader's;
    - `time_limit`, the CPU seconds of one case, multiplied by the language's `time_factor`, and
      `memory_limit_mb`; the defaults are the grader's `limits`;
    - `checker`: "lines" (the default), "exact", "tokens", "floats", "unordered_lines", those of data sets
      ("live_code_bench", "apps", "code_contests"), a function of (stdin, output, expected) that runs on the host,
      or a `JudgeProgram`, which runs in a sandbox that never holds a submission. `rel_tol` and `abs_tol` select
      "floats";
    - `preamble`, imports that come before a submission in Python;
    - `interactor`, a `JudgeProgram`: it reads the case's `stdin` and talks to the submission;
    - or `tests`, source that is appended to the submission, as in MultiPL-E. It
      runs in the submission's process, and exit status 0 passes: a submission can fool it.

    The outcome is `passed`, `failed` (a wrong answer), `timeout`, `oom`, `truncated` (too much output),
    `runtime_error`, `compile_error` or `infra_error`; `parts` has the cases that ran. Grading stops at
    the first failure. With `partial` all cases run, and the score is the weighted mean of their scores.

    A mistake in a task raises ConfigurationError that names it. A data set's column that is not a key
    is ignored, unless it resembles a key; list such columns in `ignore`.
    """

    language: str | Language | None = None
    limits: Limits = field(default=_DEFAULT)
    compile_limits: Limits = field(default=Limits(timeout=30.0))
    """Limits of the compiler. Its memory limit is the larger of the language's `compile_memory_mb` and
    the one in `limits`."""
    partial: bool = False
    ignore: Collection[str] = ()

    forks_python: ClassVar[bool] = False
    """Read by `grading_session`: programs need no warm Python in their sandboxes."""

    def __post_init__(self) -> None:
        if self.language is not None:
            object.__setattr__(self, "language", language_of(self.language))
        if isinstance(self.ignore, str):
            raise ConfigurationError(f"ignore={self.ignore!r} is text: give ({self.ignore!r},)")

    def extract(self, text: str) -> str | None:
        """Return the code in a model's answer, or None if there is none; see `extract_code`.

        Accepts blocks in the grader's language and unmarked ones; without a language, any block.
        Trainers call this.
        """
        if not isinstance(self.language, Language):
            return extract_code(text, None)
        return extract_code(text, (*self.language.fences, ""))

    # Any: see Grader.
    def validate(self, task: Mapping[str, Any]) -> None:
        """Check a task without a sandbox. Raises ConfigurationError if it cannot be graded."""
        self._limits(self._problem(task))

    # Any: see Grader.
    def grade(
        self, session: Session, submission: str, task: Mapping[str, Any]
    ) -> Operation[Verdict]:
        """Grade a submission. Raises ConfigurationError at once for a task that cannot be graded."""
        problem = self._problem(task)
        limits = self._limits(problem)

        async def run() -> Verdict:
            verdict = await self._grade(session, submission, problem, limits)
            return note_fences(verdict, submission, "grader.extract")

        return Operation(run())

    async def _grade(
        self, session: Session, submission: str, problem: Problem, limits: Limits
    ) -> Verdict:
        code = f"{submission}\n{problem.tests}\n" if problem.tests else submission
        if problem.language.source.endswith(".py"):
            code = _with_preamble(problem.preamble, code)
        memory = problem.memory_limit_mb or max((limits.memory_mb or _MEMORY_MB) // 2, 64)
        language = problem.language.bound(code, memory)
        program = (await build(session, language, code, self._compiler(problem))).answer
        if isinstance(program, Verdict):
            verdict = program
        elif problem.tests:
            ran = await execute(session, program, ProgramInput(), limits)
            verdict = ran.verdict or Verdict(Outcome.PASSED, 1.0, "policy", "exit status 0")
        else:
            return await evaluate(session, program, problem, limits, partial=self.partial)
        return dataclasses.replace(verdict, trust="shared" if problem.tests else "isolated")

    def _problem(self, task: Mapping[str, Any]) -> Problem:
        return problem_of(task, self.language, self.ignore)

    def _limits(self, problem: Problem) -> Limits:
        """Return the limits of one case: the task's, or the grader's where the task has none."""
        limits, language = self.limits, problem.language
        if problem.time_limit is not None:
            seconds = problem.time_limit * language.time_factor
            if seconds >= limits.deadline:
                raise ConfigurationError(
                    f"the task's time_limit={problem.time_limit:g} is {seconds:g} s in "
                    f"{language.name}, not below the grader's deadline={limits.deadline:g}"
                )
            wall = limits.wall if limits.wall is None else max(limits.wall, seconds)
            limits = dataclasses.replace(limits, timeout=seconds, wall=wall)
        if problem.memory_limit_mb is not None:
            memory = problem.memory_limit_mb + language.memory_extra_mb + _OWN_MB
            limits = dataclasses.replace(limits, memory_mb=memory)
        return limits

    def _compiler(self, problem: Problem) -> Limits:
        memory = max(problem.language.compile_memory_mb, self.limits.memory_mb or 0)
        return dataclasses.replace(
            self.compile_limits, memory_mb=memory, reuse=self.limits.reuse, wall=None
        )


def _with_preamble(preamble: str, code: str) -> str:
    """Return a Python program with its preamble, which comes after imports from `__future__`."""
    lines = code.removeprefix("\ufeff").split("\n")
    tree = parse_or_none("\n".join(lines)) if preamble else None
    futures = [
        node.end_lineno or 0
        for node in (tree.body if tree else ())
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ]
    at = max(futures, default=0)
    return "\n".join([*lines[:at], preamble, *lines[at:]]) if preamble else code
