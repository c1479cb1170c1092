"""How the corpora of correct programs write their tasks."""

from collections.abc import Sequence
from typing import Any

# Any: a task is a row of somebody's data set.
Row = tuple[str, dict[str, Any]]
"""A submission and its task."""


# Any: options of a task.
def lines(*tests: str, **options: Any) -> dict[str, Any]:
    """Lines of tests, as MBPP has them, with further keys of the task."""
    return {"test_list": list(tests), **options}


# Any: arguments and results of every type.
def cases(
    entry_point: str, *rows: tuple[Sequence[Any], Any], abs_tol: float = 0.0
) -> dict[str, Any]:
    """Pairs of arguments and what is expected."""
    found = [{"args": list(args), "expected": expected} for args, expected in rows]
    return {"entry_point": entry_point, "cases": found, "abs_tol": abs_tol}


def program(*rows: tuple[str, str]) -> dict[str, Any]:
    """Pairs of standard input and output."""
    return {"cases": [{"stdin": stdin, "stdout": stdout} for stdin, stdout in rows]}


def check(entry_point: str, *body: str) -> dict[str, Any]:
    """A check(candidate) as HumanEval has it."""
    source = "\n".join(f"    {line}" for part in body for line in part.splitlines())
    return {"entry_point": entry_point, "test": f"def check(candidate):\n{source}\n"}


def module(source: str) -> dict[str, Any]:
    """A module of test functions."""
    return {"tests": source}
