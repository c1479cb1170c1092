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
from sandboxkit.integrations.rewards.doctor import check, check_beforehand, line_about, summary
from sandboxkit.testing import FakeProvider
from sandboxkit.types import SandboxSpec
from tests.data_here import beside

pytestmark = [pytest.mark.timeout(600), pytest.mark.anyio]

GIVEN = beside(__file__)
VECTOR, PRICE, BODIES = GIVEN["vector"], GIVEN["price"], GIVEN["bodies"]
ADD = "def add(a, b):\n    return a + b\n"
GOOD = {"test_list": ["assert add(1, 2) == 3", "assert add(5, 5) == 10", "assert add(-1, 1) == 0"]}


def module(name: str, *body: str) -> dict[str, Any]:
    lines = "\n    ".join(body)
    return {"tests": f"from solution import {name}\ndef test_it():\n    {lines}\n"}


def checked(task: Mapping[str, Any], code: str = ADD, grader: Grader | None = None) -> TaskReport:
    judge = grader or HostCompare()

    async def run() -> TaskReport:
        async with grading_session(judge, "local", pool=2) as session:
            return await check(session, judge, task, code)

    return asyncio.run(run())


def kinds(report: TaskReport) -> set[str]:
    return {finding.kind for finding in report.findings}


def test_a_good_task_is_fine() -> None:
    report = checked(GOOD)
    assert (report.status, report.findings, report.shape) == ("fine", (), "values")
    assert report.cheats > 15
    assert (report.mutants, report.survivors) == (2, 0)


@pytest.mark.parametrize("name", BODIES)
def test_weak_tests_are_cheated_and_that_is_named(name: str) -> None:
    body = BODIES[name]
    report = checked(module(body.get("function", "add"), *body["lines"]), body.get("code", ADD))
    assert report.status == "bought"
    assert {*body.get("cheats", ())} <= {finding.what for finding in report.findings}
    assert {*body.get("kinds", ())} <= kinds(report)
    assert report.shape == "judge"
    assert body.get("remedy", "") in " ".join(finding.remedy for finding in report.findings)


def test_tests_of_one_branch_are_weak_and_name_the_changed_lines() -> None:
    report = checked({"test_list": PRICE["lines"]}, PRICE["code"])
    assert report.status == "weak"
    assert PRICE["change"] in {each.what for each in report.findings}
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

    asked = 0

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
    found = {finding.what for finding in checked({"cases": cases[:1]}, reference).findings}
    assert "a program that always prints the first expected output" in found


def test_a_grader_that_trusts_the_exit_status_is_cheated() -> None:
    found = {finding.what for finding in checked(GOOD, grader=ExitCode()).findings}
    assert "os._exit(0) when it is loaded" in found


class Down(FakeProvider):
    async def create(self, spec: SandboxSpec) -> str:
        raise ProviderUnavailableError("no answer", provider=self.name)


class Hangs:
    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def test_a_failure_of_the_infrastructure_is_unknown_and_stops_no_training() -> None:
    async with Session(Down()) as session:
        report = await HostCompare().check(session, GOOD, ADD)
        tasks = [{"code": ADD, **GOOD}]
        reports = await check_beforehand(session, HostCompare(), tasks, "raise", seconds=20)
    assert report.status == "unknown"
    assert "no answer" in report.findings[0].what
    assert summary(reports) == "1 task: 1 unknown"


async def test_a_check_is_over_in_time() -> None:
    begun = time.monotonic()
    async with Session(FakeProvider()) as session:
        report = await check(session, Hangs(), GOOD, ADD, seconds=0.1)
    assert time.monotonic() - begun < 30
    assert (report.status, kinds(report)) == ("unknown", {"unknown"})


async def test_before_training_a_few_tasks_with_references_are_checked_once() -> None:
    async def beforehand(tasks: list[dict[str, Any]], what: Any) -> list[TaskReport]:
        async with grading_session(HostCompare(), "local", pool=2) as session:
            return await check_beforehand(session, HostCompare(), tasks, what)

    bad = {"task_id": "bad", "code": ADD, "test_list": ["assert add(1, 2) == 4"]}
    good = {"task_id": "good", "code": ADD, **GOOD}
    without = {"task_id": "without", **GOOD}
    assert await beforehand([without], "raise") == []
    assert await beforehand([bad, good], "off") == []
    reports = await beforehand([without, good, good, bad], "warn")
    assert {report.name: report.status for report in reports} == {"good": "fine", "bad": "refused"}
    line = line_about(reports)
    assert "2 tasks: 1 fine, 1 refused; bad is refused: failed: add(1, 2) does not have" in line
    with pytest.raises(ConfigurationError, match="bad is refused"):
        await beforehand([good, bad], "raise")
