"""A task for each thing that the doctor finds."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from sandboxkit import ConfigurationError, ProviderUnavailableError, Session
from sandboxkit.integrations.rewards import (
    Grader,
    HostCompare,
    Limits,
    Outcome,
    TaskReport,
    Verdict,
    grading_session,
    run_program,
)
from sandboxkit.integrations.rewards.doctor import check, check_beforehand, line_about, summary
from sandboxkit.provider import FirstCommand
from sandboxkit.testing.fake import FakeBox, FakeProvider
from sandboxkit.types import SandboxSpec
from tests.data_here import beside

pytestmark = [pytest.mark.timeout(600), pytest.mark.anyio]

GIVEN = beside(__file__)
PRICE, BODIES, UNSTEADY = GIVEN["price"], GIVEN["bodies"], GIVEN["unsteady"]
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
    assert (report.status, report.findings) == ("fine", ())
    assert (report.level, report.why) == ("isolated", "")
    assert report.cheats > 12
    assert (report.mutants, report.survivors) == (2, 0)


@pytest.mark.parametrize("name", BODIES)
def test_weak_tests_are_cheated_and_that_is_named(name: str) -> None:
    body = BODIES[name]
    report = checked(module(body.get("function", "add"), *body["lines"]), body.get("code", ADD))
    assert report.status == "bought"
    assert {*body.get("cheats", ())} <= {finding.what for finding in report.findings}
    assert {*body.get("kinds", ())} <= kinds(report)
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
    task = module("put, get", "assert put(1, 2) == 2", "assert put(3, 4) + get(1) == 6")
    report = checked(task, GIVEN["store"])
    assert report.status == "refused"
    assert '"stateful": true' in report.findings[0].remedy
    report = checked({**task, "stateful": True}, GIVEN["store"])
    assert report.status != "refused"
    assert (report.level, report.why) == ("shared", "the task says that calls share state")


def test_a_task_that_cannot_be_graded_is_refused_with_the_remedy() -> None:
    report = checked({"tests_list": GOOD["test_list"]})
    assert report.status == "refused"
    assert "did you mean 'test_list'?" in report.findings[0].what
    assert checked({"tests": "def test_it(:"}).status == "refused"
    assert checked({"test_list": ["# assert add(1, 2) == 3", ""]}).status == "refused"


@pytest.mark.parametrize("name", UNSTEADY)
def test_a_reference_that_passes_only_sometimes_is_refused(name: str) -> None:
    task = UNSTEADY[name]
    report = checked({"tests": task["tests"]}, task.get("code", ADD))
    assert report.status == "refused"
    assert task["says"] in report.findings[0].what


@dataclass
class Recording:
    """Notes each grading, and passes it."""

    limits: Limits = field(default_factory=Limits)
    runs: list[tuple[str, bool, int]] = field(default_factory=list)

    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        order = task["tests"].index("test_a") < task["tests"].index("test_b")
        self.runs.append((submission, order, self.limits.reuse == "never"))
        return Verdict(Outcome.PASSED, 1.0)


def test_the_reference_runs_five_times_in_two_orders_and_in_new_processes() -> None:
    tests = (
        "def test_a():\n    assert add(1, 2) == 3\n\ndef test_b():\n    assert add(5, 5) == 10\n"
    )
    grader = Recording()
    checked({"tests": tests}, grader=grader)
    runs = [(order, fresh) for submission, order, fresh in grader.runs if submission == ADD]
    assert sorted(runs) == [
        (False, False),
        (False, True),
        (True, False),
        (True, False),
        (True, True),
    ]


class OnlyOnce:
    """Passes a task with a key once alone, as chance does."""

    asked = 0

    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        self.asked += bool(task.get("stateful"))
        passes = bool(task.get("stateful")) and self.asked == 1
        return Verdict(Outcome.PASSED if passes else Outcome.FAILED, float(passes))


def test_a_key_with_which_the_reference_passes_once_is_not_suggested() -> None:
    assert "stateful" not in checked(GOOD, grader=OnlyOnce()).findings[0].remedy


def test_tests_that_demand_the_last_digit_of_a_float_are_weak() -> None:
    lines = ["assert mean([0.1, 0.2, 0.4]) == 0.23333333333333336", "assert mean([1, 2]) == 1.5"]
    code = "def mean(xs):\n    return sum(xs) / len(xs)\n"
    report = checked({"test_list": lines}, code)
    assert (report.status, len(report.findings)) == ("weak", 1)
    assert "isclose" in report.findings[0].remedy
    near = [
        line.replace("assert ", "assert math.isclose(").replace(" ==", ",") + ")" for line in lines
    ]
    assert checked({"test_list": near}, code).status == "fine"


def test_a_summary_counts_the_levels_and_why_tasks_are_shared() -> None:
    why = [
        "the tests make an object of Stack",
        "the tests import os",
        "the tests make an object of A",
    ]
    reports = [TaskReport("a", "fine"), *(TaskReport("b", "weak", (), "shared", x) for x in why)]
    assert summary(reports) == (
        "4 tasks: 1 fine, 3 weak; 1 isolated, 3 shared "
        "(2 because the tests make an object of ..., 1 because the tests import os)"
    )


def test_programs_are_checked_too() -> None:
    reference = "print(int(input()) * 2)\n"
    cases = [{"stdin": "2", "stdout": "4"}, {"stdin": "3", "stdout": "6"}]
    assert checked({"cases": cases}, reference).status == "fine"
    found = {finding.what for finding in checked({"cases": cases[:1]}, reference).findings}
    assert "a program that always prints the first expected output" in found


class ByStatus:
    """Trusts the exit status of the submission's process."""

    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        code = "\n".join([submission, *task["test_list"]])
        result = await run_program(session, code)
        passes = not isinstance(result, Verdict) and result.returncode == 0
        return Verdict(Outcome.PASSED if passes else Outcome.FAILED, float(passes))


def test_a_grader_that_trusts_the_exit_status_is_cheated_and_shared() -> None:
    report = checked(GOOD, grader=ByStatus())
    assert "os._exit(0) when it is loaded" in {finding.what for finding in report.findings}
    assert (report.level, report.why) == (
        "shared",
        "ByStatus runs the tests in the submission's process",
    )


class Down(FakeProvider):
    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> FakeBox:
        raise ProviderUnavailableError("no answer")


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
    assert summary(reports) == "1 task: 1 unknown; 1 isolated, 0 shared"


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
    assert (
        "2 tasks: 1 fine, 1 refused; 2 isolated, 0 shared; bad is refused: failed: add(1, 2)"
        in line
    )
    with pytest.raises(ConfigurationError, match="bad is refused"):
        await beforehand([good, bad], "raise")
