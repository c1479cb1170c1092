"""The demo and `tasks check` on programs of MBPP and HumanEval: right ones pass, broken ones fail."""

import json
from pathlib import Path

import pytest

from sandboxkit.cli import _demo_run, _mbpp
from tests.cli.conftest import Cli
from tests.rewards.corpus import humaneval


def test_there_are_a_hundred_problems_with_a_right_and_a_broken_program() -> None:
    programs = _mbpp.programs()
    found = [(each.task_id, each.broken) for each in programs]
    assert found == [(number, broken) for number in range(1, 101) for broken in (False, True)]
    for right, broken in zip(programs[::2], programs[1::2], strict=True):
        assert right.source != broken.source


@pytest.mark.nightly  # .ci/run makes the same run by `make demo`, whose status it checks
def test_the_demo_succeeds_on_local(cli: Cli) -> None:
    result = cli("demo")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "200/200: 100 passed, 97 failed, 3 timed out" in result.stdout


def test_a_reference_that_fails_or_an_infra_error_is_not_success() -> None:
    right, broken = _mbpp.programs(1)

    def succeeded(*outcomes: tuple[_mbpp.MbppProgram, _demo_run.Kind]) -> bool:
        results = [_demo_run.ProgramResult(program, kind, 0.1) for program, kind in outcomes]
        return _demo_run.Report(results, 1).succeeded

    assert succeeded((right, "passed"), (broken, "failed"))
    assert succeeded((right, "passed"), (broken, "timed out"))
    assert not succeeded((right, "failed"), (broken, "failed"))
    assert not succeeded((right, "passed"), (broken, "passed"))
    assert not succeeded((right, "passed"), (broken, "infra error"))
    assert not succeeded((right, "timed out"), (broken, "failed"))


pytestmark = pytest.mark.timeout(900)

MBPP = Path(__file__).parents[1] / "rewards" / "data" / "mbpp_500.jsonl"


def test_references_of_humaneval_and_mbpp_are_not_refused(cli: Cli, tmp_path: Path) -> None:
    tasks = humaneval()[::80]
    tasks += [json.loads(line) for line in MBPP.read_text().splitlines()[::250]]
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    result = cli("tasks", "check", str(path), "--json")
    reports = [json.loads(line) for line in result.stdout.splitlines()]
    assert [report["name"] for report in reports] == [str(task["task_id"]) for task in tasks]
    assert {report["status"] for report in reports} <= {"fine", "weak", "bought"}
    assert sum(report["status"] == "fine" for report in reports) >= len(reports) / 2
    assert {report["level"] for report in reports} == {"isolated"}
    assert min(report["cheats"] for report in reports) > 12
    assert result.stderr.startswith(f"{len(tasks)} tasks: ")
    assert result.stderr.endswith(f"; {len(tasks)} isolated, 0 shared\n")
