"""One task, mix(a, b) = a * b + a - b, in each shape that tests of functions come in."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TESTS = [
    "assert mix(2, 3) == 5",
    "assert mix(10, 1) == 19",
    "assert mix(7, 7) == 49",
    "assert mix(0, 5) == -5",
    "assert mix(12, -3) == -21",
]
_TOLERANCE = [
    "assert abs(mix(2, 3) - 5) < 1e-6",
    "assert abs(19 - mix(10, 1)) <= 1e-9",
    "assert round(mix(7.5, 2.0), 3) == 20.5",
]
_RELATIONS = [
    "assert set([mix(2, 3), mix(10, 1)]) == {5, 19}",
    "assert mix(7, 7) in (48, 49, 50) and mix(7, 7) != 48 and mix(7, 7) != 50",
    "import math\nassert math.isclose(mix(0.5, 5.0), -2.0, rel_tol=1e-9)",
    "assert not mix(0, 5) != -5 and sorted([mix(12, -3), mix(2, 3)]) == [-21, 5]",
]
_CHECK = """
import random

METADATA = {"author": "sandboxkit", "dataset": "test"}


def oracle(a, b):
    return a * b + a - b


def check(candidate):
    assert candidate(2, 3) == 5
    rng = random.Random()
    for _ in range(10):
        a, b = rng.randint(-99, 99), rng.randint(-99, 99)
        value = candidate(a, b)
        assert value == oracle(a, b), (a, b)
        assert isinstance(value, int)
    for a in range(3):
        assert abs(candidate(a + 0.5, 2) - oracle(a + 0.5, 2)) < 1e-6
    assert len({candidate(10, 1), candidate(7, 7)}) == 2
"""
_MODULE = """
import math

from solution import mix


def near(left, right):
    return math.isclose(left, right, rel_tol=1e-9)


def test_small_numbers():
    assert mix(2, 3) == 5
    assert mix(0, 5) == -5


def test_a_table():
    for a, b, expected in ((10, 1, 19), (7, 7, 49), (12, -3, -21)):
        assert mix(a, b) == expected, f"mix({a}, {b})"


def test_fractions():
    assert near(mix(7.5, 2.0), 20.5)
"""
_CASES = [
    {"args": [2, 3], "expected": 5},
    {"args": [10], "kwargs": {"b": 1}, "expected": 19},
    {"args": [7, 7], "expected": 49},
    {"args": [12, -3], "expected": -21},
]

Graded = tuple[str, str, Mapping[str, Any]]
"""A name, a submission and its task. Any: a row of a data set."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Tests as a data set has them, and as `test_list` for graders that read nothing else."""

    name: str
    # Any: a row of a data set.
    task: Mapping[str, Any]
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """A task in several shapes, a correct submission for it and hostile ones."""

    honest: str
    cheats: Mapping[str, str]
    shapes: tuple[Shape, ...]


SHAPES = (
    Shape("literal asserts", {"test_list": TESTS}, tuple(TESTS)),
    Shape("tolerances", {"test_list": _TOLERANCE}, tuple(_TOLERANCE)),
    Shape("set, in, !=, isclose", {"test_list": _RELATIONS}, tuple(_RELATIONS)),
    Shape(
        "check(candidate)",
        {"test": _CHECK, "entry_point": "mix"},
        (f"{_CHECK}\ncheck(mix)",),
    ),
    Shape("test functions", {"tests": _MODULE}),
    Shape("cases", {"cases": _CASES, "entry_point": "mix"}),
)

_APPLY_CHECK = """
def check(candidate):
    seen = []

    def remember(value):
        seen.append(value)
        return value * 3

    items = [4, 1, 9]
    assert candidate(remember, items) == 42
    assert seen == [4, 1, 9]
    assert items == [12, 3, 27]
    secret = iter([7, 70, 700])
    assert candidate(lambda value: next(secret), [0, 0, 0]) == 777

    def refuse(value):
        raise KeyError(value)

    try:
        candidate(refuse, [1])
    except KeyError:
        pass
    else:
        assert False, "the exception did not come through"
"""
_APPLY_LINES = [
    "assert apply(lambda value: value + 1, [1, 2]) == 5",
    "items = [3, 4]\nassert apply(lambda value: value * value, items) == 25\nassert items == [9, 16]",
    "assert apply(len, ['a', 'bc']) == 3",
]
HONEST_APPLY = """
def apply(function, items):
    for index, value in enumerate(items): items[index] = function(value)
    return sum(items)
"""
APPLY_SHAPES = (
    Shape(
        "callables, in place: check(candidate)",
        {"test": _APPLY_CHECK, "entry_point": "apply", "in_place": True},
        (f"{_APPLY_CHECK}\ncheck(apply)",),
    ),
    Shape(
        "callables, in place: asserts",
        {"test_list": _APPLY_LINES, "in_place": ["apply"]},
        tuple(_APPLY_LINES),
    ),
)
"""For apply(function, items): puts function(value) in the place of each and returns the sum."""
