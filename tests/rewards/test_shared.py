"""Tests beside the submission: an end, a skip or a forged report is no success, and the verdict says what it is worth."""

from typing import Any

import pytest

from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome
from tests.rewards.conftest import grade_all
from tests.rewards.corpus import DATA, read

pytestmark = pytest.mark.timeout(300)
GIVEN = read(DATA / "shared.toml")
LIMITS = Limits(timeout=1, wall=2, memory_mb=256)
PRELUDE = "import builtins, ctypes, json, os, threading, time, unittest\n"
TESTS = {
    "in functions": "from solution import f\ndef test_it():\n    assert f() == 5\n",
    "in unittest": "import unittest\nfrom solution import f\nclass TestIt(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(f(), 5)\n",
}


# Any: rows of a data set.
def grade(codes: dict[str, str], tests: str, where: str = "local", **keys: Any) -> dict[str, Any]:
    task = {"tests": tests, "stateful": True, **keys}
    rows = [(name, PRELUDE + code, task) for name, code in codes.items()]
    verdicts = grade_all(where, HostCompare(LIMITS), rows, in_turn=True)
    assert {verdict.trust for verdict in verdicts.values()} == {"shared"}
    return verdicts


@pytest.mark.parametrize(
    ("provider", "form"),
    [("local", "in functions"), ("local", "in unittest"), ("docker", "in functions")],
    indirect=["provider"],
)
def test_tests_that_do_not_run_to_their_end_fail(provider: str, form: str) -> None:
    verdicts = grade(GIVEN["fails"], TESTS[form], provider)
    assert {name: each for name, each in verdicts.items() if each.reward != 0} == {}
    assert verdicts["sleeps when it is called"].outcome is Outcome.TIMEOUT


def test_what_the_document_says_passes_does() -> None:
    verdicts = grade(GIVEN["passes"], TESTS["in functions"])
    assert {
        name: each for name, each in verdicts.items() if each.outcome is not Outcome.PASSED
    } == {}


def test_tests_do_not_see_what_another_test_did() -> None:
    tests = "from solution import seen\n" + "".join(
        f"def test_{n}():\n    seen.append({n})\n    assert seen == [{n}]\n" for n in (1, 2)
    )
    assert grade({"it": "seen = []"}, tests)["it"].outcome is Outcome.PASSED


def test_the_first_test_that_fails_is_named() -> None:
    tests = "from solution import f\ndef test_one():\n    assert f(1) == 1\n"
    tests += "def test_two():\n    assert f(2) == 3, 'two'\n"
    verdict = grade({"it": "def f(n): return n"}, tests)["it"]
    assert (verdict.outcome, verdict.score) == (Outcome.FAILED, 0)
    assert verdict.detail == "test 2: line 5: AssertionError: two"


def test_what_a_submission_replaced_is_as_it_was_for_the_tests() -> None:
    tests = (
        "import math, solution\nfrom math import isclose\nfrom solution import *\n"
        "def test_it():\n    assert isclose(root(4), 2)\n    assert not isclose(1, 2)\n"
    )
    codes = {
        "right": "def root(n): return n ** 0.5",
        "wrong": "isclose = lambda *a: True\ndef root(n): return 0",
    }
    verdicts = grade(codes, tests)
    assert (verdicts["right"].reward, verdicts["wrong"].reward) == (1, 0)
