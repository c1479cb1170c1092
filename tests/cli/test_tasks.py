"""`tasks check` says which tasks of a file can be bought, and why; for people and for programs."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.rewards.humaneval_shaped import PROBLEMS

pytestmark = pytest.mark.timeout(900)

MBPP = Path(__file__).parents[1] / "rewards" / "data" / "mbpp_500.jsonl"


def test_shapes_of_humaneval_and_mbpp_refuse_no_reference(cli: Cli, tmp_path: Path) -> None:
    tasks = [problem.row for problem in PROBLEMS[::24]]
    tasks += [json.loads(line) for line in MBPP.read_text().splitlines()[::250]]
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    result = cli("tasks", "check", str(path), "--json")
    reports = [json.loads(line) for line in result.stdout.splitlines()]
    assert [report["name"] for report in reports] == [str(task["task_id"]) for task in tasks]
    assert {report["status"] for report in reports} <= {"fine", "weak", "bought"}
    assert sum(report["status"] == "fine" for report in reports) >= len(reports) / 2
    assert {report["shape"] for report in reports} == {"judge", "values"}
    assert min(report["cheats"] for report in reports) > 15
    assert result.stderr.startswith(f"{len(tasks)} tasks: ")
