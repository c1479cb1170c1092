"""The cheats that are made for a task's tests."""

import ast

import pytest

from sandboxkit.integrations.rewards import _tests
from sandboxkit.integrations.rewards.doctor._check import cheats
from sandboxkit.integrations.rewards.doctor._tasks import reference_of
from tests.data_here import beside

GIVEN = beside(__file__)


def made(task: dict[str, object], reference: str = "") -> dict[str, str]:
    tests = _tests.tests_of(task, list(task.get("test_list") or ()))  # type: ignore[call-overload]  # a row
    return {each.name: each.code for each in cheats(task, tests, reference)}


def test_all_known_classes_of_cheats_are_made() -> None:
    found = made({"tests": GIVEN["tests"]}, GIVEN["bank"])
    assert {*GIVEN["cheats"]} <= found.keys()
    for code in found.values():
        ast.parse(code)
    always = found["always returns None"]
    assert "opened = stub" in always
    assert "Account = Stub" in always
    assert "class Insufficient(Exception): pass" in always
    assert "isclose =" not in always


@pytest.mark.parametrize(
    ("task", "code"),
    [
        ({"test_list": ["assert set(f(1)) == {g([2])}", "assert f(0) == [7]"]}, "return [7]"),
        ({"entry_point": "f", "cases": [{"args": [1], "expected": {"__tuple__": [1]}}]}, "(1, )"),
    ],
)
def test_a_cheat_returns_the_first_expected_value(task: dict[str, object], code: str) -> None:
    assert code in made(task)["always returns the first expected value"]


def test_a_cheat_prints_the_first_expected_output() -> None:
    found = made({"cases": [{"stdin": "1", "stdout": "2"}, {"stdin": "2", "stdout": "3"}]})
    assert "write('2')" in found["a program that always prints the first expected output"]
    assert "always returns None" not in found


def test_a_reference_is_found_in_the_columns_of_known_data_sets() -> None:
    body = {"prompt": "def f(x):\n", "canonical_solution": "    return x\n", "entry_point": "f"}
    assert reference_of(body) == "def f(x):\n    return x\n"
    whole = {**body, "canonical_solution": "def f(x):\n    return x\n"}
    assert reference_of(whole) == whole["canonical_solution"]
    assert reference_of({**body, "prompt": [{"role": "user", "content": "Write f"}]}) is None
    assert reference_of({"code": "a = 1", "text": "Write it"}) == "a = 1"
    assert reference_of({"answer": "b = 1", "code": "a = 1"}, "answer") == "b = 1"
    assert reference_of({"code": "a = 1"}, "answer") is None
