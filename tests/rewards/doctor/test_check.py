"""A task for each thing that the doctor finds."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest

from sandboxkit import ConfigurationError, ProviderUnavailableError, Session
from sandboxkit.integrations.rewards import (
    ExitCode,
    Grader,
    HostCompare,
    Outcome,
    TaskReport,
    Verdict,
    grading_session,
)
from sandboxkit.integrations.rewards.doctor import (
    check,
    check_beforehand,
    line_about,
    summary,
)
from sandboxkit.testing import FakeProvider
from sandboxkit.types import SandboxSpec

pytestmark = pytest.mark.timeout(600)

ADD = "def add(a, b):\n    return a + b\n"
GOOD = {"test_list": ["assert add(1, 2) == 3", "assert add(5, 5) == 10", "assert add(-1, 1) == 0"]}
VECTOR = """
class V:
    def __init__(self, x):
        self.x = x
    def __mul__(self, k):
        return V(self.x * k)
"""


def module(name: str, *body: str) -> dict[str, Any]:
    lines = "\n    ".join(body)
    return {"tests": f"from solution import {name}\ndef test_it():\n    {lines}\n"}


def checked(
    task: Mapping[str, Any], reference: str = ADD, grader: Grader | None = None
) -> TaskReport:
    judge = grader or HostCompare()

    async def run() -> TaskReport:
        async with grading_session(judge, "local", pool=2) as session:
            return await check(session, judge, task, reference)

    return asyncio.run(run())


def kinds(report: TaskReport) -> set[str]:
    return {finding.kind for finding in report.findings}


def test_a_good_task_is_fine() -> None:
    report = checked(GOOD)
    assert (report.status, report.findings, report.shape) == ("fine", (), "values")
    assert report.cheats > 15
    assert (report.mutants, report.survivors) == (2, 0)


def test_tests_that_compare_a_submission_with_itself_are_cheated_by_constants() -> None:
    report = checked(module("add", "assert add(1, 2) == add(2, 1)"))
    assert report.status == "bought"
    found = {finding.what: finding.remedy for finding in report.findings}
    assert "a literal value" in found["always returns None"]
    assert report.shape == "judge"


def test_tests_of_the_length_alone_are_cheated_and_weak() -> None:
    reference = "def double(xs):\n    return [2 * x for x in xs]\n"
    report = checked(module("double", "assert len(double([1, 2])) == 2"), reference)
    assert report.status == "bought"
    assert "returns its argument" in {finding.what for finding in report.findings}
    assert "weak" in kinds(report)


def test_tests_without_assertions_or_of_errors_alone_are_cheated() -> None:
    assert checked(module("add", "add(1, 2)")).status == "bought"
    reference = "def age(n):\n    if n < 0:\n        raise ValueError(n)\n    return n\n"
    body = ("try:", "    age(-1)", "    assert False", "except ValueError:", "    pass")
    found = [finding.what for finding in checked(module("age", *body), reference).findings]
    assert "always raises ValueError" in found


def test_tests_of_one_branch_are_weak_and_name_the_changed_lines() -> None:
    reference = """
def price(n, member):
    if member:
        n = n * 9 // 10
        n = n - 1
        n = max(n, 3)
    return n * 2 + 1
"""
    lines = ["assert price(1, False) == 3", "assert price(4, False) == 9"]
    report = checked({"test_list": lines}, reference)
    assert report.status == "weak"
    assert "n = n * 9 // 10  ->  n = n * 9 // 11" in {each.what for each in report.findings}
    assert report.survivors > report.mutants / 3


def test_a_reference_that_fails_is_refused_with_its_verdict() -> None:
    report = checked({"test_list": ["assert add(1, 2) == 4"]})
    assert report.status == "refused"
    assert "add(1, 2) does not have the expected value" in report.findings[0].what
    assert "disagree" in report.findings[0].remedy
    assert (report.cheats, report.mutants) == (0, 0)


def test_a_key_that_lets_the_reference_pass_is_suggested() -> None:
    task = module("V", "assert (V(2) * 3).x == 6", "assert (V(4) * 5).x == 20")
    report = checked(task, VECTOR)
    if report.status == "refused":  # the boundary may carry this operator one day
        assert '"operators": ["V"]' in report.findings[0].remedy
    assert checked({**task, "operators": ["V"]}, VECTOR).status != "refused"


def test_a_task_that_cannot_be_graded_is_refused_with_the_remedy() -> None:
    report = checked({"tests_list": GOOD["test_list"]})
    assert report.status == "refused"
    assert "did you mean 'test_list'?" in report.findings[0].what
    assert checked({"tests": "def test_it(:"}).status == "refused"


class Once:
    """A grader that passes the first submission alone, as tests may that depend on chance."""

    def __init__(self) -> None:
        self.asked = 0

    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        self.asked += 1
        if self.asked == 1:
            return Verdict(Outcome.PASSED, 1.0)
        return Verdict(Outcome.FAILED, 0.0, "policy", "another value")


def test_a_reference_that_passes_only_sometimes_is_refused() -> None:
    report = checked(GOOD, grader=Once())
    assert report.status == "refused"
    assert "only sometimes: another value" in report.findings[0].what


def test_programs_are_checked_too() -> None:
    reference = "print(int(input()) * 2)\n"
    cases = [{"stdin": "2", "stdout": "4"}, {"stdin": "3", "stdout": "6"}]
    assert checked({"cases": cases}, reference).status == "fine"
    report = checked({"cases": cases[:1]}, reference)
    assert "a program that always prints the first expected output" in {
        finding.what for finding in report.findings
    }


def test_a_grader_that_trusts_the_exit_status_is_cheated() -> None:
    found = {finding.what for finding in checked(GOOD, grader=ExitCode()).findings}
    assert "os._exit(0) when it is loaded" in found


class Down(FakeProvider):
    """A provider that cannot make a sandbox."""

    async def create(self, spec: SandboxSpec) -> str:
        raise ProviderUnavailableError("no answer", provider=self.name)


class Hangs:
    """A grader that never ends."""

    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


def test_a_failure_of_the_infrastructure_is_unknown_and_nothing_else() -> None:
    async def run() -> TaskReport:
        async with Session(Down()) as session:
            return await HostCompare().check(session, GOOD, ADD)

    report = asyncio.run(run())
    assert report.status == "unknown"
    assert "no answer" in report.findings[0].what


def test_a_check_is_over_in_time() -> None:
    async def run() -> TaskReport:
        async with Session(FakeProvider()) as session:
            return await check(session, Hangs(), GOOD, ADD, seconds=0.1)

    begun = time.monotonic()
    report = asyncio.run(run())
    assert time.monotonic() - begun < 30
    assert (report.status, kinds(report)) == ("unknown", {"unknown"})


def beforehand(tasks: list[dict[str, Any]], what: Any) -> list[TaskReport]:
    async def run() -> list[TaskReport]:
        async with grading_session(HostCompare(), "local", pool=2) as session:
            return await check_beforehand(session, HostCompare(), tasks, what)

    return asyncio.run(run())


def test_before_training_a_few_tasks_with_references_are_checked_once() -> None:
    bad = {"task_id": "bad", "code": ADD, "test_list": ["assert add(1, 2) == 4"]}
    good = {"task_id": "good", "code": ADD, **GOOD}
    without = {"task_id": "without", **GOOD}
    assert beforehand([without], "raise") == []
    assert beforehand([bad, good], "off") == []
    reports = beforehand([without, good, good, bad], "warn")
    assert {report.name: report.status for report in reports} == {"good": "fine", "bad": "refused"}
    line = line_about(reports)
    assert "2 tasks: 1 fine, 1 refused; bad is refused: failed: add(1, 2) does not have" in line
    with pytest.raises(ConfigurationError, match="bad is refused"):
        beforehand([good, bad], "raise")


def test_before_training_a_failure_of_the_infrastructure_stops_nothing() -> None:
    async def run() -> list[TaskReport]:
        async with Session(Down()) as session:
            tasks = [{"code": ADD, **GOOD}]
            return await check_beforehand(session, HostCompare(), tasks, "raise", seconds=20)

    assert summary(asyncio.run(run())) == "1 task: 1 unknown"
