"""How the corpus of idioms writes its tests."""

import textwrap
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Idiom:
    """A task whose tests are written as their authors write them, and two submissions for it."""

    task: dict[str, Any]  # Any: a task is a row of somebody's data set
    reference: str
    wrong: str


def functions(tests: str, reference: str, wrong: str) -> Idiom:
    """A module of test functions."""
    task = {"tests": textwrap.dedent(tests)}
    return Idiom(task, textwrap.dedent(reference), textwrap.dedent(wrong))


def check(entry_point: str, body: str, reference: str, wrong: str) -> Idiom:
    """A check(candidate); `body` is its body."""
    source = "def check(candidate):\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    task = {"entry_point": entry_point, "test": source + "\n"}
    return Idiom(task, textwrap.dedent(reference), textwrap.dedent(wrong))
