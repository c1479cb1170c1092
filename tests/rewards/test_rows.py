"""Rows as data sets have them: lines that test nothing, NumPy's arrays, large numbers, methods of a class."""

from typing import Any

import numpy as np
import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.rewards import HostCompare, PassRate, programs

pytestmark = pytest.mark.anyio
ONE = "assert f(1) == 2"
RIGHT, WRONG = "def f(n): return n + 1", "def f(n): return n"


@pytest.mark.parametrize("lines", [[""], ["# none", "  "], ["pass", '"""text"""', "..."]])
def test_a_list_of_tests_that_tests_nothing_is_refused(lines: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="tests nothing"):
        HostCompare().validate({"test_list": lines})


@pytest.mark.parametrize("grader", [HostCompare(), HostCompare(partial=True), PassRate()])
async def test_lines_that_test_nothing_change_no_score(grader: HostCompare | PassRate) -> None:
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


def test_columns_of_numpy_are_lists() -> None:
    pairs = [("1\n", "2\n"), ("3\n", "4\n")]
    columns = {"input": np.array(["1\n", "3\n"]), "output": np.array(["2\n", "4\n"])}
    cases = [{"input": a, "output": b} for a, b in pairs]
    both = {"inputs": columns["input"], "outputs": columns["output"]}
    for task in (
        programs.load_code_contests({"public_tests": columns}),
        programs.load_live_code_bench({"public_test_cases": np.array(cases)}),
        programs.load_taco({"input_output": both}),
    ):
        assert [(case["stdin"], case["stdout"]) for case in task["cases"]] == pairs
    HostCompare().validate({"test_list": np.array([ONE])})
