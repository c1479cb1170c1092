"""`tasks check` says which tasks of a file can be bought, and why; for people and for programs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.rewards.humaneval_shaped import PROBLEMS

pytestmark = pytest.mark.timeout(900)

ADD = "def add(a, b):\n    return a + b\n"
GOOD = {"task_id": "good", "test_list": ["assert add(1, 2) == 3", "assert add(5, 5) == 10"]}
ITSELF = {
    "task_id": "itself",
    "tests": "from solution import add\ndef test_it():\n    assert add(1, 2) == add(2, 1)\n",
}
MBPP = Path(__file__).parents[1] / "rewards" / "data" / "mbpp_500.jsonl"


def write(path: Path, *tasks: Mapping[str, Any]) -> str:
    path.write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    return str(path)


def test_what_is_wrong_is_shown_with_what_to_do_and_a_summary(cli: Cli, tmp_path: Path) -> None:
    wrong = {"task_id": "wrong", "test_list": ["assert add(1, 2) == 4"]}
    tasks = [{**each, "answer": ADD} for each in (GOOD, ITSELF, wrong)]
    path = write(tmp_path / "tasks.jsonl", *tasks)
    result = cli("tasks", "check", path, "--reference", "answer")
    assert (result.returncode, result.stderr) == (1, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("itself: bought (graded as judge, ")
    assert "  bought    always returns None" in lines
    assert any(
        line.startswith("  to do     compare each result with a literal value") for line in lines
    )
    assert "wrong: refused (graded as values)" in lines
    assert "  to do     the reference and the tests disagree: correct one of them" in lines
    assert lines[-1] == "3 tasks: 1 fine, 1 bought, 1 refused"
    assert max(map(len, lines)) <= 80
    assert sum("bought  " in line for line in lines) == 6  # five of them, and how many more


def test_a_file_without_a_defect_is_one_line(cli: Cli, tmp_path: Path) -> None:
    path = write(tmp_path / "tasks.jsonl", {**GOOD, "reference": ADD, "time_limit": 2})
    result = cli("tasks", "check", path, "--ignore", "time_limit")
    assert (result.returncode, result.stdout, result.stderr) == (0, "1 task: 1 fine\n", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}\n{", "line 1: no reference solution in reference or canonical_solution or code"),
        ('{"code": "a = 1"}\n[1]', "line 2: a list, not an object"),
        ("\n{no}", "line 2: not JSON"),
        ("", "has no lines"),
    ],
)
def test_a_file_that_cannot_be_used_is_wrong_usage(
    text: str, expected: str, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "tasks.jsonl").write_text(text)
    result = cli("tasks", "check", str(tmp_path / "tasks.jsonl"))
    assert result.returncode == 2
    assert expected in result.stderr
    assert cli("tasks", "check", str(tmp_path / "none.jsonl")).returncode == 2


def test_shapes_of_humaneval_and_mbpp_refuse_no_reference(cli: Cli, tmp_path: Path) -> None:
    tasks = [problem.row for problem in PROBLEMS[::24]]
    tasks += [json.loads(line) for line in MBPP.read_text().splitlines()[::250]]
    result = cli("tasks", "check", write(tmp_path / "tasks.jsonl", *tasks), "--json")
    reports = [json.loads(line) for line in result.stdout.splitlines()]
    assert [report["name"] for report in reports] == [str(task["task_id"]) for task in tasks]
    assert {report["status"] for report in reports} <= {"fine", "weak", "bought"}
    assert sum(report["status"] == "fine" for report in reports) >= len(reports) / 2
    assert {report["shape"] for report in reports} == {"judge", "values"}
    assert min(report["cheats"] for report in reports) > 15
    assert result.stderr.startswith(f"{len(tasks)} tasks: ")
