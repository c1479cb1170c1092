"""Rows as data sets and their libraries have them, and answers in the forms that models give."""

import json
import math
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations._training.tasks import task_of
from sandboxkit.integrations.rewards import HostCompare, programs
from sandboxkit.integrations.rewards.programs import Program

pytestmark = pytest.mark.anyio
ONE = "assert f(1) == 2"
RIGHT, WRONG = "def f(n): return n + 1", "def f(n): return n"


@pytest.mark.parametrize("lines", [[""], ["# none", "  "], ["pass", '"""text"""', "..."]])
def test_a_list_of_tests_that_tests_nothing_is_refused(lines: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="tests nothing"):
        HostCompare().validate({"test_list": lines})


@pytest.mark.parametrize("grader", [HostCompare(), HostCompare(partial=True)])
async def test_lines_that_test_nothing_change_no_score(grader: HostCompare) -> None:
    task = {"test_list": [ONE, "", "# a comment", "   ", "pass"]}
    async with Session("local") as local:
        assert (await grader.grade(local, RIGHT, task)).score == 1.0
        assert (await grader.grade(local, WRONG, task)).score == 0.0


async def test_numbers_of_thousands_of_digits_are_arguments_and_results() -> None:
    task = {"entry_point": "f", "cases": [{"args": [10**5000], "expected": 10**5000 + 1}]}
    async with Session("local") as local:
        assert (await HostCompare().grade(local, RIGHT, task)).score == 1.0
        assert (await HostCompare().grade(local, WRONG, task)).score == 0.0


@pytest.mark.parametrize(
    "task", [{"test": "def check(f): pass"}, {"cases": [{"args": [1], "expected": 2}]}]
)
def test_a_method_as_the_entry_point_is_refused_with_what_to_write(task: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"assert Solution\(\).f\(...\) == ..."):
        HostCompare().validate({**task, "entry_point": "Solution().f"})


PAIRS = [("1\n", "2\n"), ("3\n", "4\n")]
COLUMNS = {"input": [a for a, _ in PAIRS], "output": [b for _, b in PAIRS]}
CASES = [{"input": a, "output": b} for a, b in PAIRS]
BOTH = {"inputs": COLUMNS["input"], "outputs": COLUMNS["output"]}
FORMS: dict[str, Any] = {
    "tuples": lambda value: tuple(value) if isinstance(value, list) else value,
    "NumPy": np.array,
    "Arrow": pa.scalar,
    "an array of Arrow": lambda value: pa.array(value) if isinstance(value, list) else value,
    "pandas": lambda value: pd.Series(value) if isinstance(value, list) else value,
    "JSON": json.dumps,
    "JSON in bytes": lambda value: json.dumps(value).encode(),
    "the values of NumPy": lambda value: (
        {name: np.array(each, dtype=object) for name, each in value.items()}
        if isinstance(value, dict)
        else np.array(value, dtype=object)
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("missing", [None, math.nan, pd.NA, pa.scalar(None)])
def test_loaders_take_what_libraries_give(form: str, missing: object) -> None:
    made = FORMS[form]
    for task in (
        programs.load_code_contests({"public_tests": made(COLUMNS), "private_tests": missing}),
        programs.load_live_code_bench(
            {"public_test_cases": made(CASES), "private_test_cases": missing}
        ),
        programs.load_taco({"input_output": made(BOTH), "time_limit": missing}),
    ):
        assert [(case["stdin"], case["stdout"]) for case in task["cases"]] == PAIRS
    HostCompare().validate({"test_list": made([ONE]), "entry_point": missing})
    Program("python").validate({"cases": made([{"stdin": "", "stdout": "2"}]), "language": missing})


ROW = {"public_tests": COLUMNS, "name": "1_A"}


@pytest.mark.parametrize(
    "row",
    [
        pd.DataFrame([ROW]).iloc[0],
        next(iter(pd.DataFrame([ROW]).itertuples())),
        pa.scalar(ROW),
        datasets.Dataset.from_list([ROW]).with_format("numpy")[0],
    ],
    ids=["Series", "named tuple", "struct", "datasets"],
)
def test_a_row_of_any_library_is_read(row: Any) -> None:
    assert len(programs.load_code_contests(row)["cases"]) == 2


def test_a_table_is_no_row() -> None:
    tables: list[Any] = [pd.DataFrame([ROW]), pa.Table.from_pylist([ROW])]
    for table in tables:
        with pytest.raises(ConfigurationError, match=r"is a (DataFrame|Table): give a mapping"):
            programs.load_code_contests(table)


def test_a_task_is_a_mapping_or_its_json() -> None:
    task = {"entry_point": "f", "cases": [{"args": [1], "expected": 2}]}
    for truth in (task, json.dumps(task), json.dumps(task).encode(), pa.scalar(task)):
        assert task_of(truth) == task


IMPORTED = """from typing import List

def helper(n):
    return n + 1

def f(n: List[int]) -> int:
    \"\"\"Add one.\"\"\"
"""


@pytest.mark.parametrize(
    "more",
    [
        {"cases": [{"args": [[1]], "expected": 2}]},
        {"test": "def check(g):\n    assert g([1]) == 2\n"},
        {"test": "def check(g):\n    for n in range(3):\n        assert n < g([n]) < n + 2\n"},
        {"test": "def check(g):\n    assert g([1]) == 2\n", "stateful": True},
    ],
)
@pytest.mark.parametrize(
    ("code", "score"),
    [
        ("def f(n: List[int]) -> int:\n    return helper(n[0])", 1),
        ("class Solution:\n    def f(self, n: List[int]) -> int:\n        return n[0] + 1", 1),
        ("class Solution:\n    def f(self, n: List[int]) -> int:\n        return n[0]", 0),
        ("class Solution:\n    def g(self, n): return n[0] + 1", 0),
    ],
)
async def test_an_answer_may_use_the_prompt_s_imports_and_may_be_a_method(
    more: dict[str, Any], code: str, score: float
) -> None:
    async with Session("local") as local:
        task = {"entry_point": "f", "prompt": IMPORTED, **more}
        assert (await HostCompare().grade(local, code, task)).score == score


async def test_inspect_finds_functions_behind_other_separators_of_lines() -> None:
    source = "def f():\n    return inspect.getsource(f)"
    task = {"entry_point": "f", "cases": [{"args": [], "expected": source}]}
    code = f"import inspect\nX = '''\f\u2028\x1c'''\n{source}"
    async with Session("local") as local:
        found = await HostCompare().grade(local, code, task)
        assert found.score == 1.0, found
