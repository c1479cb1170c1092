"""The recommended grader: no code that decides a grade runs in the submission's sandbox."""

import dataclasses
import functools
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from sandboxkit import ConfigurationError, Operation, Session
from sandboxkit.integrations.rewards import _cases
from sandboxkit.integrations.rewards._evaluation import (
    Submission,
    evaluate,
    grade_isolated,
    grade_shared,
)
from sandboxkit.integrations.rewards._extract import note_fences
from sandboxkit.integrations.rewards._judge import NotPlainError
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._prefetch import prefetch_queue
from sandboxkit.integrations.rewards._task import PreparedTask, prepared
from sandboxkit.integrations.rewards._tests import Tests, definitions, tests_of, undefined
from sandboxkit.integrations.rewards._verdict import Outcome, Trust, Verdict
from sandboxkit.integrations.rewards.doctor import TaskReport, check


@dataclass(frozen=True, slots=True)
class HostCompare:
    """Compares a submission's results on the host, or by tests in a sandbox without the submission.

    No expected value ever enters the submission's sandbox, so the submission cannot read or change
    one: it passes only if it returns the right results. It can still hard-code the results that the
    prompt shows, so include cases that the prompt does not show.

    A task has one or more of

    - `cases`, a list of {"args", "kwargs", "expected"} for the function `entry_point` or of
      {"stdin", "stdout"} for a program, with `strict` (default True: 1, 1.0 and True differ),
      `rel_tol` and `abs_tol`, which a case can override. `also` lists other results that are right, and `tuples`
      is the depth to which a tuple equals an expected list. Values that JSON lacks are written as
      {"__tuple__": [1, 2]},
      {"__set__": []}, {"__frozenset__": []}, {"__bytes__": "6162"}, {"__dict__": [[1, 2]]},
      {"__float__": "nan"}, {"__complex__": [1, 2]}, {"__decimal__": "1.10"},
      {"__fraction__": [1, 3]};
    - `test_list`, lines such as `assert f(1) == 2`, with `test_setup_code`, as in MBPP;
    - `test`, source that defines check(candidate), with `entry_point` and perhaps `prompt`, as in
      HumanEval;
    - `tests`, source of a module with functions `test_...()` or classes of tests, which imports the submission
      under the name `module` (default "solution").

    The verdict's `trust` says which of two levels a task has. The tests alone decide it:

    - "isolated": the tests use the submission's functions as functions of plain data. Each call runs as the first
      call of a pristine process that has only its arguments. Its result is plain data, frozen there and then: a
      subclass of a built-in class as that class, a generator as its items, an exception as its nearest built-in
      class. The tests run where no code of the submission is. A submission that passes there must pass in one process
      as well, where tests see what its calls share. They see a function change an argument where they
      read that argument afterwards, or where the task lists it in `in_place` (True: every function).
    - "shared": the tests do more (they make objects of a class, pass functions, catch the submission's own
      exceptions, use files or coroutines, or the task says `stateful`). They run in the submission's process,
      in a sandbox that no other grade uses. A submission can cheat them; CHEATS.md says how.

    With `shared` "refuse" a task of the second level raises ConfigurationError. `check` reports the level, and which
    cheats would pass the task's tests.

    With `partial` all cases and tests run, and the score is the share that passed.

    A key that is mistyped, has the wrong type or would have no effect raises ConfigurationError, and
    so does a column that other graders read, such as `time_limit`, unless `ignore` lists it. All
    other columns of a data set are ignored.
    """

    limits: Limits = field(default_factory=Limits)
    partial: bool = False
    ignore: Collection[str] = ()
    shared: Literal["refuse", "allow"] = "allow"

    def __post_init__(self) -> None:
        if not isinstance(self.limits, Limits):
            raise ConfigurationError(
                f"limits={self.limits!r} is not Limits(...); grade() takes the session"
            )
        if isinstance(self.ignore, str):
            raise ConfigurationError(f"ignore={self.ignore!r} is a string: give ({self.ignore!r},)")

    # Any: see Grader.
    def grade(
        self, session: Session, submission: str, task: Mapping[str, Any]
    ) -> Operation[Verdict]:
        """Grade a submission. Raises ConfigurationError at once for a task without usable cases."""
        if not isinstance(task, PreparedTask):
            task = self.prepared(task)
        imports, cases, tests = task.parts
        entry = str(task.get("entry_point", ""))
        prompt = definitions(task.get("prompt"), entry) if entry else []
        if preamble := task.get("preamble"):
            prompt.insert(0, preamble)

        async def run() -> Verdict:
            given = Submission(submission, entry, prompt, imports)
            return note_fences(await self._grade(session, given, cases, tests), submission)

        return Operation(run())

    # Any: see Grader.
    def validate(self, task: Mapping[str, Any]) -> None:
        """Check a task without a sandbox. Raises ConfigurationError if it cannot be graded."""
        self.prepared(task)

    # Any: see Grader.
    def prepared(self, task: Mapping[str, Any]) -> PreparedTask:
        """Check a task and take it apart, for `grade`. Raises ConfigurationError if it cannot be graded."""
        ready = prepared(task, self.ignore)
        try:
            ready.parts = self._taken_apart(ready)
        except RecursionError as error:
            raise ConfigurationError("the task's tests are nested too deeply") from error
        return ready

    def _taken_apart(self, task: Mapping[str, Any]) -> tuple[str, list[_cases.Case], list[Tests]]:
        """Return the setup's imports, the cases to compare on the host and the tests to run in a judge."""
        stateful = task.get("stateful", False)
        lines, code = list(task.get("test_list", ())), str(task.get("test_setup_code", ""))
        imported = None if stateful else _cases.imported(code)
        parts: list[_cases.FunctionCase | None] = [None] * len(lines)
        alone = len(undefined("\n".join([code, *lines]))[0]) <= 1 or task.get("entry_point")
        if imported is not None and alone:
            parts = [_cases.from_assert(line, imported) for line in lines]
        cases = [*_cases.declared(task), *(each for each in parts if each is not None)]
        whole = [line for line, part in zip(lines, parts, strict=True) if part is None]
        entry, source = str(task.get("entry_point", "")), str(task.get("test", ""))
        of_check = None
        if source and entry and not code and not stateful:
            of_check = _cases.from_check(source, entry)
        if of_check is not None:
            cases += of_check
            task = {name: value for name, value in task.items() if name != "test"}
        tests = tests_of(task, whole)
        if not cases and not tests:
            raise ConfigurationError("the task has no cases, test_list, test or tests")
        if self.partial:
            tests = [single for each in tests for single in each.apart()]
        reason = next((each.shared for each in tests if each.shared), "")
        if reason:
            self._refuse_shared(reason)
        return "" if imported is None else code, cases, tests

    async def _grade(
        self,
        session: Session,
        submission: Submission,
        cases: list[_cases.Case],
        tests: list[Tests],
    ) -> Verdict:
        failure: Verdict | None = None
        last = Verdict(Outcome.PASSED, 1.0, "policy", "")
        level: Trust = "isolated"
        passed = 0
        async with aclosing(self._verdicts(session, submission, cases, tests)) as verdicts:
            async for verdict in verdicts:
                last = verdict
                level = "shared" if "shared" in (level, verdict.trust) else level
                passed += verdict.outcome is Outcome.PASSED
                if verdict.outcome is Outcome.INFRA_ERROR:
                    return dataclasses.replace(verdict, trust=level)
                if verdict.outcome is not Outcome.PASSED:
                    failure = failure or verdict
                    if not self.partial:
                        break
        score = passed / (len(cases) + len(tests)) if failure is None or self.partial else 0.0
        return dataclasses.replace(failure or last, score=score, trust=level)

    async def _verdicts(
        self,
        session: Session,
        submission: Submission,
        cases: list[_cases.Case],
        tests: list[Tests],
    ) -> AsyncGenerator[Verdict, None]:
        right = Verdict(Outcome.PASSED, 1.0, "policy", "the last case is right")
        runs = [
            functools.partial(evaluate, session, submission, each, self.limits) for each in cases
        ]
        async with aclosing(prefetch_queue(session).in_order(runs)) as verdicts:
            async for verdict in verdicts:
                yield dataclasses.replace(verdict or right, trust="isolated")
        for each in tests:
            yield await self._graded(session, dataclasses.replace(submission, setup=""), each)

    async def _graded(self, session: Session, submission: Submission, tests: Tests) -> Verdict:
        if not tests.shared:
            try:
                verdict = await grade_isolated(session, submission, tests, self.limits)
                return dataclasses.replace(verdict, trust="isolated")
            except NotPlainError as error:
                self._refuse_shared(f"the tests pass more than plain data ({error})")
        return await grade_shared(session, submission, tests, self.limits)

    def _refuse_shared(self, reason: str) -> None:
        if self.shared == "refuse":
            raise ConfigurationError(
                f"{reason}, so they must run in the submission's process, where it can cheat them: test functions "
                "of plain data, or use HostCompare(shared='allow')"
            )

    # Any: see Grader.
    def check(
        self, session: Session, task: Mapping[str, Any], reference: str
    ) -> Operation[TaskReport]:
        """Report whether a task's tests fail its reference solution or pass a submission that cheats."""
        return Operation(check(session, self, task, reference))
