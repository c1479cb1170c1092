"""Makes tasks from families of short functions: the 3 largest numbers, the 5 largest numbers, ...

A prompt is a signature, a docstring and `return`; the policy writes the rest, and hidden calls grade
it. Some parameters of each training family are held out, and some families entirely. The easiest
problems of MBPP are added; a third of them is held out.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from string import Template
from typing import Any

from real_families import FAMILIES, Family

from sandboxkit.json_lines import read_json_lines

__all__ = ["MBPP", "Task", "mbpp", "row", "splits", "tasks", "write"]

CASES = 8
"""The number of hidden calls per task."""
HELD_OUT = 4
"""The number of held-out parameters per family, at most a third of them."""
MBPP = "mbpp"
"""The family name of MBPP's problems."""


@dataclass(frozen=True, slots=True)
class Task:
    """A family with chosen parameters."""

    family: Family
    parameters: Mapping[str, object]

    def filled(self, text: str) -> str:
        """Return a text of the family with its parameters filled in."""
        return Template(text).substitute(self.parameters)

    @property
    def head(self) -> str:
        """The prompt: signature, docstring and the beginning of the answer."""
        says = self.filled(self.family.says)
        return f'def {self.family.signature}:\n    """{says}"""\n    return'

    @property
    def reference(self) -> str:
        """The source of the reference solution."""
        return f"{self.head} {self.filled(self.family.returns)}\n"


def tasks(family: Family) -> list[Task]:
    """Return one task for each choice of the family's parameters."""
    chosen = product(*family.values.values())
    return [Task(family, dict(zip(family.values, each, strict=True))) for each in chosen]


def row(task: Task) -> dict[str, Any]:
    """Return a row of the data set, with hidden cases for HostCompare that no constant result passes.

    Raises ValueError if there are no such cases.
    """
    numbers = random.Random(task.head)
    scope: dict[str, Any] = {}
    exec(task.reference, scope)  # trusted: the reference is in this repository
    function = scope[task.family.name]
    for _ in range(100):
        arguments = [task.family.inputs(numbers) for _ in range(CASES)]
        cases = [{"args": list(each), "expected": function(*each)} for each in arguments]
        if len({str(each["expected"]) for each in cases}) > 1:
            break
    else:
        raise ValueError(f"a constant result passes all cases of {task.head!r}")
    return {
        "prompt": task.head,
        "prefix": task.head,
        "entry_point": task.family.name,
        "family": task.family.name,
        "cases": cases,
    }


def splits(seed: int = 0) -> tuple[list[Task], list[Task], list[Task]]:
    """Return rows to train on, held-out rows of the same families, and rows of held-out families."""
    train, held_out, new = list[Task](), list[Task](), list[Task]()
    for family in FAMILIES:
        chosen = tasks(family)
        random.Random(f"{seed} {family.name}").shuffle(chosen)
        if family.new:
            new += chosen[:HELD_OUT]
        else:
            count = min(HELD_OUT, len(chosen) // 3)
            held_out += chosen[:count]
            train += chosen[count:]
    return train, held_out, new


def mbpp(seed: int = 0) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return rows of MBPP's easiest problems: those to train on, and a third that is held out."""
    lines = read_json_lines(Path(__file__).with_name("mbpp_easy.jsonl"), "MBPP")
    rows = [{**each, "family": MBPP} for _, each in lines]
    rows = [{**each, "prefix": each["prompt"]} for each in rows]
    random.Random(f"{seed} {MBPP}").shuffle(rows)
    return rows[len(rows) // 3 :], rows[: len(rows) // 3]


def write(folder: Path, seed: int = 0) -> None:
    """Write train.jsonl and held_out.jsonl to `folder`."""
    train, held_out, new = splits(seed)
    more, kept = mbpp(seed)
    for name, chosen, others in (("train", train, more), ("held_out", held_out + new, kept)):
        lines = [json.dumps(each) for each in [*map(row, chosen), *others]]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
