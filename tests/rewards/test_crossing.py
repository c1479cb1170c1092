"""The tests decide: no object, class of exceptions, argument or name of a submission does."""

import asyncio
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome
from sandboxkit.integrations.rewards._cases import light
from sandboxkit.integrations.rewards._names import undefined
from tests.rewards.conftest import grade_all

pytestmark = pytest.mark.timeout(300)
GRADER = HostCompare(Limits(timeout=10, wall=20))
# Any: a task is a row of somebody's data set.
Row = tuple[str, str, dict[str, Any]]

_POLY = """
import math
def poly(xs, x): return sum(c * math.pow(x, i) for i, c in enumerate(xs))
def check(candidate):
    for a, b in ((2, 3), (-4, 5)):
        found = candidate([-a * b, a + b, -1])
        assert abs(found) < 100
        assert math.fabs(poly([-a * b, a + b, -1], found)) < 1e-4
"""
_WITHDRAW = """
from solution import Insufficient, withdraw
def test_too_much():
    try:
        withdraw(10, 30)
        assert False, "nothing was raised"
    except Insufficient:
        pass
def test_enough():
    assert withdraw(30, 10) == 20
"""
_CLEARS = """
def oracle(xs): return sum(xs)
def check(candidate):
    xs = [1, 2, 3]
    assert candidate(xs) == oracle(xs)
"""
_STAR = """
from math import isclose
from solution import *
def test_root(): assert isclose(root(2.0), 1.41421356, rel_tol=1e-6)
"""
_SETUP = {
    "test_setup_code": "def oracle(n):\n    return n * n + 7\n",
    "test_list": ["assert f(3) == 16", "assert f(5) == oracle(5)"],
}
PAID_BEFORE: dict[str, Row] = {
    "a number that is another one each time": (
        "def find_zero(xs):\n    a, b, c = xs[0], xs[1], 0\n    return Shifter()\n"
        "class Shifter:\n"
        "    asked = 0\n"
        "    def __abs__(self): return 0.0\n"
        "    def __float__(self):\n"
        "        self.asked += 1\n        return 0.0 if self.asked < 2 else 2.0\n",
        "def find_zero(xs): return min((-xs[1] + s * (xs[1] ** 2 + 4 * xs[0]) ** 0.5) / -2 for s in (1, -1))",
        {"entry_point": "find_zero", "test": _POLY},
    ),
    "an exception that catches the failed assertion": (
        "Insufficient = AssertionError\ndef withdraw(a, b): return a - b",
        "class Insufficient(Exception): pass\n"
        "def withdraw(a, b):\n    if b > a: raise Insufficient\n    return a - b",
        {"tests": _WITHDRAW},
    ),
    "an argument that the oracle reads later": (
        "def total(xs):\n    xs.clear()\n    return 0",
        "def total(xs): return sum(xs)",
        {"entry_point": "total", "test": _CLEARS},
    ),
    "a name that the tests had imported": (
        "isclose = lambda *a, **k: True\ndef root(x): return 0.0",
        "def root(x): return x ** 0.5",
        {"tests": _STAR},
    ),
    "an oracle of the setup": (
        "def f(n): return [v for v in list(globals().values()) if callable(v)][-1](n)",
        "def f(n): return n * n + 7",
        _SETUP,
    ),
}


def test_no_cheat_gets_a_reward() -> None:
    verdicts = grade_all("local", GRADER, [(n, c, t) for n, (c, _, t) in PAID_BEFORE.items()])
    assert {n: v for n, v in verdicts.items() if v.reward != 0.0} == {}


def test_honest_submissions_of_the_same_tasks_pass() -> None:
    verdicts = grade_all("local", GRADER, [(n, h, t) for n, (_, h, t) in PAID_BEFORE.items()])
    assert {n: v for n, v in verdicts.items() if v.outcome is not Outcome.PASSED} == {}


@pytest.mark.parametrize(
    ("task", "missing"),
    [
        ({"tests": "from solution import f\ndef test(): assert f(1) == orcale(1)"}, "orcale"),
        (
            {"entry_point": "f", "test": "def check(candidate):\n    assert near(candidate(1), 1)"},
            "near",
        ),
        ({"test_list": ["assert f(1) == 2", "assert g(1) == 2"]}, "g"),
        ({"test_list": ["assert f(1) == 2"], "test_setup_code": "x = helper(1)"}, "helper"),
    ],
)
def test_an_undefined_name_is_an_error_of_the_task(task: dict[str, Any], missing: str) -> None:
    async def main() -> None:
        async with Session("local") as session:
            await GRADER.grade(session, "def f(x): return x", task)

    with pytest.raises(ConfigurationError, match=f"'{missing}'.*names"):
        asyncio.run(main())


def test_a_listed_name_comes_from_the_submission() -> None:
    task = {"test_list": ["assert f(1) == 2", "assert g(1) == 3"], "names": ["f", "g"]}
    code = "def f(x): return x + 1\ndef g(x): return x + 2"
    assert grade_all("local", GRADER, [("it", code, task)])["it"].outcome is Outcome.PASSED


def test_names_are_read_from_scopes() -> None:
    source = "import math\ndef a(x): return [b(y) for y in x] + [math.pi, c]\ndef b(z): return z"
    assert undefined(source) == {"c"}
    assert undefined("def f():\n    later()\n", known={"later"}) == set()


def test_setup_beside_a_submission_has_only_imports_and_constants() -> None:
    setup = light("import math\nN = 3\n'text'\nfrom os import path")
    assert setup is not None
    assert (setup.imports, list(setup.constants)) == ("import math\nfrom os import path", ["N"])
    assert light("N = 3\nN = 4") is None
    assert light("def oracle(x): return x") is None
