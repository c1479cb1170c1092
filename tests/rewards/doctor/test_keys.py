"""A mistyped key of a task is an error before any sandbox; a data set's other columns are not."""

import asyncio
import json
import os
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.rewards import Grader, HostCompare
from sandboxkit.integrations.rewards._keys import Keys
from sandboxkit.integrations.rewards._task import CaseKeys, TaskKeys, comparison_of, prepared
from sandboxkit.integrations.rewards.programs._task import ProgramCaseKeys, ProgramKeys
from sandboxkit.testing import FakeProvider
from tests.data_here import beside
from tests.packaging.test_surface import ROOT
from tests.rewards.conftest import grade_all
from tests.rewards.corpus import DATA, humaneval

LINES = ["assert f(1) == 2", "assert f(2) == 3", "assert f(5) == 6"]
KEYS = beside(__file__)
"""What is refused: columns, tasks and cases, each with what the message names."""
CASES = [{"args": [1], "expected": 2}]
ROW = {"test_list": LINES}
CASE_ROW = {"entry_point": "f", "cases": CASES}


PAGES = ROOT / "docs" / "guides"
WRITE = os.environ.get("SANDBOXKIT_WRITE") == "1"


@pytest.mark.parametrize(
    ("page", "model"),
    [
        ("task-doctor.md", TaskKeys),
        ("task-doctor.md", CaseKeys),
        ("competitive-programming.md", ProgramKeys),
        ("competitive-programming.md", ProgramCaseKeys),
    ],
)
def test_a_page_has_the_keys_of_the_model(page: str, model: type[Keys]) -> None:
    """With SANDBOXKIT_WRITE=1, write them first."""
    path, begin, end = PAGES / page, f"<!-- keys: {model.__name__} -->\n", "<!-- end of keys -->\n"
    before, _, rest = path.read_text().partition(begin)
    keys = [f"| `{name}` | {field.description} |\n" for name, field in model.model_fields.items()]
    table = "".join(["| key | meaning |\n|---|---|\n", *keys])
    if WRITE:
        path.write_text(f"{before}{begin}{table}{end}{rest.partition(end)[2]}")
    assert rest.partition(end)[0] == table, "SANDBOXKIT_WRITE=1 pytest writes it"


def refusal(grader: Grader, task: dict[str, Any]) -> str:
    """What the grader says to a task that it refuses, and that it makes no sandbox before."""
    provider = FakeProvider()

    async def run() -> str:
        async with Session(provider) as session:
            with pytest.raises(ConfigurationError) as caught:
                await grader.grade(session, "def f(x): return x + 1", task)
            assert not await session.list()
        return str(caught.value)

    return asyncio.run(run())


@pytest.mark.parametrize(("column", "value", "remedy"), KEYS["mistyped"])
def test_a_mistyped_or_foreign_key_has_a_remedy(column: str, value: Any, remedy: str) -> None:
    message = refusal(HostCompare(), {**CASE_ROW, column: value})
    assert column in message
    assert remedy in message


@pytest.mark.parametrize(
    ("task", "named"), [*KEYS["invalid"], ({"test_list": [b"assert f(1) == 2"]}, "test_list=")]
)
def test_an_invalid_or_useless_value_is_refused(task: dict[str, Any], named: str) -> None:
    assert named in refusal(HostCompare(), task)


@pytest.mark.parametrize(("case", "named"), KEYS["cases"])
def test_within_a_case_every_unknown_key_is_refused(case: Any, named: str) -> None:
    message = refusal(HostCompare(), {"entry_point": "f", "cases": [*CASES, case]})
    assert "case 2" in message
    assert named in message


def test_columns_of_known_data_sets_are_accepted() -> None:
    rows = [json.loads(line) for line in (DATA / "mbpp_500.jsonl").read_text().splitlines()]
    rows += humaneval()
    rows.append({**ROW, "text": "Write f", "code": "", "challenge_test_list": [], "task_id": 7})
    rows.append({**ROW, "source_file": "a", "prompt": "Write f", "test_imports": []})
    rows.append({**ROW, "difficulty": "easy", "name": "f", "tags": ["a"], "language": "Python"})
    for row in rows:
        assert prepared(row) == row


def test_a_column_in_ignore_is_accepted() -> None:
    task = {**ROW, "time_limit": 2, "language": "cpp"}
    assert prepared(task, ignore=("time_limit", "language")) == ROW
    HostCompare(ignore=("time_limit", "language")).validate(task)
    with pytest.raises(ConfigurationError, match="is a string"):
        HostCompare(ignore="time_limit")


def test_empty_columns_count_as_absent() -> None:
    assert prepared({**ROW, "cases": None, "tests": None, "rel_tol": None}) == ROW
    both = {"entry_point": "f", "cases": [{**CASES[0], "stdin": None, "stdout": None}]}
    assert prepared(both) == both


def test_a_case_has_tolerances_of_its_own() -> None:
    own = comparison_of({"strict": False, "rel_tol": 0.5}, {"rel_tol": 0.0, "abs_tol": 1})
    assert own == comparison_of({"strict": False, "abs_tol": 1.0}, {})
    near = {"args": [1.0], "expected": 1.01}
    loose = {"entry_point": "f", "cases": [{**near, "rel_tol": 0.1}]}
    exact = {"entry_point": "f", "rel_tol": 0.1, "cases": [{**near, "rel_tol": 0.0}]}
    code = "def f(x): return x"
    verdicts = grade_all("local", HostCompare(), [("loose", code, loose), ("exact", code, exact)])
    assert {name: each.score for name, each in verdicts.items()} == {"loose": 1, "exact": 0}
