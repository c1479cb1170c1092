"""The level of a task is read from its tests alone: what they do with a function's name and with its results."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from sandboxkit.integrations.rewards import _tests
from sandboxkit.integrations.rewards._cases import from_check
from tests.rewards.corpus import DATA, read

GIVEN = read(DATA / "levels.toml")


def told(line: str, setup: str = GIVEN["imports"], **keys: Any) -> Any:
    (tests,) = _tests.tests_of({"test_list": [line], "test_setup_code": setup, **keys}, [line])
    return tests


@pytest.mark.parametrize("line", GIVEN["isolated"])
def test_a_function_of_plain_data_is_isolated(line: str) -> None:
    assert told(line).shared == ""


@pytest.mark.parametrize(
    ("reason", "line"), [(why, line) for why, lines in GIVEN["beside"].items() for line in lines]
)
def test_tests_that_do_more_are_shared_and_say_why(reason: str, line: str) -> None:
    assert re.search(reason, told(line).shared)


def test_one_name_that_no_test_defines_is_the_submissions_function_and_more_are_shared() -> None:
    assert told("assert mix(1) > 0", "").shared == ""
    for line in ("assert f(1) > g(1) > 0", "assert f(1) < LIMIT", "assert np.isclose(f(1), 2)"):
        assert "which they do not define" in told(line, "").shared


def test_a_task_whose_calls_share_state_is_shared() -> None:
    assert "share state" in told("assert f(1) > 0", stateful=True).shared


@pytest.mark.parametrize(("line", "places"), GIVEN["in_place"].items())
def test_the_arguments_that_tests_read_after_a_call_are_found(
    line: str, places: Mapping[str, Any]
) -> None:
    found = told(line).in_place
    assert {name: each for name, each in found.items() if each} == places
    assert told(line, in_place=["f"]).in_place["f"] is True


def test_a_check_of_literals_is_compared_on_the_host() -> None:
    checks = {
        "assert candidate([1], b=2) == (1, 2)\n    assert candidate('a') is None": 2,
        "assert candidate(1) == 2\n    assert candidate(1) > 0": None,
        "for n in range(3):\n        assert candidate(n) == n": None,
        "x = 1\n    assert candidate(x) == 1": None,
    }
    for body, count in checks.items():
        cases = from_check(f"METADATA = {{}}\ndef check(candidate):\n    {body}\n", "f")
        assert (cases and len(cases)) == count, body


def test_names_are_read_from_scopes() -> None:
    source = "import math\ndef a(x): return [b(y) for y in x] + [math.pi, c]\ndef b(z): return z"
    assert _tests.undefined(source) == ({"c"}, set())
    source = "from math import *\nassert isclose(f(1), pi) and sys.path"
    assert _tests.undefined(source) == ({"f"}, {"sys"})
