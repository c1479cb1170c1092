"""The grader to prefer: what decides is never where the submission runs."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.rewards import _cases
from sandboxkit.integrations.rewards._evaluation import Submission, evaluate_all
from sandboxkit.integrations.rewards._isolated import Limits
from sandboxkit.integrations.rewards._judged import judged
from sandboxkit.integrations.rewards._tests import Tests, tests_of
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class HostCompare:
    """Compares what a submission claims on the host, or by tests in a sandbox of their own.

    No expected value ever enters the sandbox of a submission, so there is nothing to read, patch
    or forge: it passes only if it knows the answers. What remains is to know them beforehand:
    keep back some cases that the prompt does not show.

    A task has one or more of

    - `cases`, a list of {"args", "kwargs", "expected"} for the function `entry_point` or of
      {"stdin", "stdout"} for a program, with `strict` (default True: 1, 1.0 and True differ),
      `rel_tol` and `abs_tol`. Tuples, sets, bytes and int keys in JSON: {"__tuple__": [1, 2]},
      {"__set__": []}, {"__frozenset__": []}, {"__bytes__": "6162"}, {"__dict__": [[1, 2]]},
      {"__float__": "nan"}, {"__complex__": [1, 2]}, {"__decimal__": "1.10"},
      {"__fraction__": [1, 3]};
    - `test_list`, lines such as `assert f(1) == 2`, with `test_setup_code`, as in MBPP;
    - `test`, source that defines check(candidate), with `entry_point` and perhaps `prompt`, as in
      HumanEval;
    - `tests`, source of a module with functions `test_...()`, which import the submission as
      `module`, by default "solution".

    Values, and lines that compare a call with a literal, are compared on this side: each has a
    pristine sandbox of its own. All else a judge runs, in a sandbox without the submission, which
    has one pristine sandbox for all of it; calls travel between them. Names that the tests use and
    do not define are the submission's. Lists, dicts and other plain data travel as copies, of which
    arguments are brought up to date after each call; what the submission changes later the tests
    do not see, nor does it see what they write to files, print or patch. Objects stay where they
    are. An operator between an object of the submission and plain data works on the plain value
    that the object stands for, or is a TypeError, unless `operators` lists the name of its class:
    what such an operator says is believed. An assertion that fails in a callback, or in a `with`
    block of the submission's, fails the test whatever the submission makes of it. Try each task
    with its reference solution: one that is refused meets one of these limits.

    With `partial` the score is the share of the cases and tests that passed, and all are run.
    With `together` all function cases of a submission are called in one process: as many times
    fewer sandboxes, but the submission sees the inputs of all cases, which tells it something
    where the input of one is the answer to another.
    """

    limits: Limits = field(default_factory=Limits)
    partial: bool = False
    together: bool = False

    def __post_init__(self) -> None:
        if self.partial and self.together:
            raise ConfigurationError("partial=True needs cases that are run apart: not together")

    # Any: see Grader.
    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        """Grade a submission. Raises ConfigurationError for a task without usable cases."""
        cases, tests = self._taken_apart(task)
        verdict = await self._grade(session, submission, task, cases, tests)
        return dataclasses.replace(verdict, trust="isolated")

    def _taken_apart(self, task: Mapping[str, Any]) -> tuple[list[_cases.Case], list[Tests]]:
        """What is compared here, and what a judge runs."""
        lines = list(task.get("test_list", ()))
        helpers = _cases.bound_names(str(task.get("test_setup_code", "")))
        parts = [_cases.from_assert(line, helpers) for line in lines]
        cases = [*_cases.declared(task), *(each for each in parts if each is not None)]
        whole = [line for line, part in zip(lines, parts, strict=True) if part is None]
        tests = tests_of(task, whole)
        if not cases and not tests:
            raise ConfigurationError("the task has no cases, test_list, test or tests")
        if self.together:
            cases = _cases.merged(cases)
        if self.partial:
            tests = [single for each in tests for single in each.apart()]
        return cases, tests

    async def _grade(
        self,
        session: Session,
        submission: str,
        task: Mapping[str, Any],
        cases: list[_cases.Case],
        tests: list[Tests],
    ) -> Verdict:
        code = Submission(submission, str(task.get("test_setup_code", "")))
        first = Verdict(Outcome.PASSED, 1.0, "policy", "no cases")
        passed = 0
        if cases:
            first = await evaluate_all(session, code, cases, self.limits, partial=self.partial)
            passed = round(first.score * len(cases))
        for each in tests:
            if first.outcome is Outcome.INFRA_ERROR:
                return first
            if first.outcome is not Outcome.PASSED and not self.partial:
                break
            verdict = await judged(session, submission, each, self.limits)
            passed += verdict.outcome is Outcome.PASSED
            if first.outcome is Outcome.PASSED or verdict.outcome is Outcome.INFRA_ERROR:
                first = verdict
        if first.outcome in (Outcome.PASSED, Outcome.INFRA_ERROR) or not self.partial:
            return first
        return dataclasses.replace(first, score=passed / (len(cases) + len(tests)))
