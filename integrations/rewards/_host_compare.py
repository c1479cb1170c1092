"""The recommended grader: no code that decides a grade runs in the submission's sandbox."""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.rewards import _cases
from sandboxkit.integrations.rewards._evaluation import Submission, evaluate_all
from sandboxkit.integrations.rewards._judged import judged
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._same_process import grade_in_same_process, names_in_process
from sandboxkit.integrations.rewards._task import PreparedTask, checked
from sandboxkit.integrations.rewards._tests import Tests, names_for_judge, parsed, tests_of
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict
from sandboxkit.integrations.rewards.doctor import TaskReport, check


@dataclass(frozen=True, slots=True)
class HostCompare:
    """Compares a submission's results on the host, or by tests in a separate sandbox.

    No expected value ever enters the submission's sandbox, so the submission cannot read or change
    one: it passes only if it returns the right results. It can still hard-code the results that the
    prompt shows, so include cases that the prompt does not show.

    A task has one or more of

    - `cases`, a list of {"args", "kwargs", "expected"} for the function `entry_point` or of
      {"stdin", "stdout"} for a program, with `strict` (default True: 1, 1.0 and True differ),
      `rel_tol` and `abs_tol`, which a case can override. Values that JSON lacks are written as
      {"__tuple__": [1, 2]},
      {"__set__": []}, {"__frozenset__": []}, {"__bytes__": "6162"}, {"__dict__": [[1, 2]]},
      {"__float__": "nan"}, {"__complex__": [1, 2]}, {"__decimal__": "1.10"},
      {"__fraction__": [1, 3]};
    - `test_list`, lines such as `assert f(1) == 2`, with `test_setup_code`, as in MBPP;
    - `test`, source that defines check(candidate), with `entry_point` and perhaps `prompt`, as in
      HumanEval;
    - `tests`, source of a module with functions `test_...()` that import the submission under the
      name `module` (default "solution").

    Cases, and lines that compare a call with a literal, are compared on the host; each runs in its
    own pristine sandbox. Every other test runs in a judge, a sandbox that never holds the
    submission. The submission runs in a second sandbox, which never holds a test. The tests' calls
    are sent from one to the other:

    - Plain data is sent as a copy. The tests do not see a function change its arguments, unless the
      task lists the function in `in_place` (True: every function) or the call is a whole statement,
      such as `sort(items)`.
    - An object of the submission is sent as one description of its value, items, attributes and
      text. The tests work on that description. Only a call of a method that plain data lacks is
      sent to the object, and the description is renewed afterwards.
    - An object stays live, and receives every operation, if the task lists its class in `classes`
      or, without that key, if the tests use the class's capitalised name.
    - An operator between an object and plain data works on the object's plain value, or raises
      TypeError. If `operators` lists the class, the object's own operator is called instead.
    - An exception class of the submission becomes a new class in the tests. It catches what the
      submission raises, and never an exception of the tests.
    - If the tests call a function of the submission twice in a row with equal arguments, its
      results must be equal, unless `varies` lists it (True: every function).
    - A failed assertion in a callback or in one of the submission's `with` blocks fails the test.
    - `from solution import *` imports no name that the tests define or import.

    A name that the tests use and do not define raises ConfigurationError, unless the task lists it
    in `names`, it is the `entry_point`, or every line of `test_list` uses it. Tests that need to
    run in the submission's process, for example to subclass its classes or to share files with it,
    need `trust`: "shared"; the verdict then has the same trust. `check` reports which key a task
    needs for its reference to pass, and which cheats would pass its tests.

    With `partial` all cases and tests run, and the score is the share that passed. With `together`
    all function cases run in one process, which takes fewer sandboxes; but the submission sees the
    inputs of all cases, and one case's input may reveal another's expected value.

    A key that is mistyped, has the wrong type or would have no effect raises ConfigurationError, and
    so does a column that other graders read, such as `time_limit`, unless `ignore` lists it. All
    other columns of a data set are ignored.
    """

    limits: Limits = field(default_factory=Limits)
    partial: bool = False
    together: bool = False
    ignore: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.partial and self.together:
            raise ConfigurationError(
                "partial=True and together=True exclude each other: partial needs one run per case"
            )
        if isinstance(self.ignore, str):
            raise ConfigurationError(f"ignore={self.ignore!r} is a string: give ({self.ignore!r},)")

    # Any: see Grader.
    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        """Grade a submission. Raises ConfigurationError for a task without usable cases."""
        if not isinstance(task, PreparedTask):
            task = self.prepared(task)
        imports, cases, tests = task.parts
        verdict = await self._grade(session, Submission(submission, imports), task, cases, tests)
        shared = bool(tests) and task.get("trust") == "shared"
        return dataclasses.replace(verdict, trust="shared" if shared else "isolated")

    # Any: see Grader.
    def validate(self, task: Mapping[str, Any]) -> None:
        """Check a task without a sandbox. Raises ConfigurationError if it cannot be graded."""
        self.prepared(task)

    # Any: see Grader.
    def prepared(self, task: Mapping[str, Any]) -> PreparedTask:
        """Check a task and take it apart, for `grade`. Raises ConfigurationError if it cannot be graded."""
        ready = PreparedTask(checked(task, ignore=self.ignore))
        ready.parts = self._taken_apart(ready)
        return ready

    def _taken_apart(self, task: Mapping[str, Any]) -> tuple[str, list[_cases.Case], list[Tests]]:
        """Return the setup's imports, the cases to compare on the host and the tests to run in a judge."""
        lines, code = list(task.get("test_list", ())), str(task.get("test_setup_code", ""))
        helpers, setup = _cases.bound_names(parsed(code)), _cases.light(code)
        parts: list[_cases.FunctionCase | None] = [None] * len(lines)
        if setup is not None:
            inlined = [_cases.with_constants(line, setup.constants) for line in lines]
            parts = [_cases.from_assert(line, helpers) for line in inlined]
        cases = [*_cases.declared(task), *(each for each in parts if each is not None)]
        whole = [line for line, part in zip(lines, parts, strict=True) if part is None]
        tests = tests_of(task, whole)
        if not cases and not tests:
            raise ConfigurationError("the task has no cases, test_list, test or tests")
        if self.together:
            cases = _cases.merged(cases)
        if self.partial:
            tests = [single for each in tests for single in each.apart()]
        look = names_in_process if task.get("trust") == "shared" else names_for_judge
        tests = [dataclasses.replace(each, seen=look(each)) for each in tests]
        return setup.imports if setup else "", cases, tests

    async def _grade(
        self,
        session: Session,
        submission: Submission,
        task: Mapping[str, Any],
        cases: list[_cases.Case],
        tests: list[Tests],
    ) -> Verdict:
        run = grade_in_same_process if task.get("trust") == "shared" else judged
        first = Verdict(Outcome.PASSED, 1.0, "policy", "no cases")
        passed = 0
        if cases:
            first = await evaluate_all(
                session, submission, cases, self.limits, partial=self.partial
            )
            passed = round(first.score * len(cases))
        for each in tests:
            if first.outcome is Outcome.INFRA_ERROR:
                return first
            if first.outcome is not Outcome.PASSED and not self.partial:
                break
            verdict = await run(session, submission.code, each, self.limits)
            passed += verdict.outcome is Outcome.PASSED
            if first.outcome is Outcome.PASSED or verdict.outcome is Outcome.INFRA_ERROR:
                first = verdict
        if first.outcome in (Outcome.PASSED, Outcome.INFRA_ERROR) or not self.partial:
            return first
        return dataclasses.replace(first, score=passed / (len(cases) + len(tests)))

    # Any: see Grader.
    async def check(self, session: Session, task: Mapping[str, Any], reference: str) -> TaskReport:
        """Report whether a task's tests fail its reference solution or pass a submission that cheats."""
        return await check(session, self, task, reference)
