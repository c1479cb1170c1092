"""The table of cheats that each grader accepts is what the graders accept."""

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sandboxkit.integrations import rewards
from sandboxkit.integrations.rewards import ExitCode, Grader, HostCompare, Limits, PassRate
from tests.rewards.trials import TRIALS, in_turn, refused, try_all

pytestmark = pytest.mark.timeout(900)

DOCUMENT = Path(str(rewards.__file__)).resolve().with_name("CHEATS.md")
BEGIN, END = "<!-- cheats: measured -->\n", "<!-- end of cheats -->\n"
WRITE = os.environ.get("SANDBOXKIT_WRITE") == "1"
"""Whether to measure all that the document says, and to write it."""
SHARED: dict[str, Callable[[Limits], Grader]] = {"PassRate": PassRate, "ExitCode": ExitCode}
"""Graders that run tests beside the submission. What they accept varies with chance and time."""
EVERY = 12
"""On those, one cheat in so many is tried."""

SLOW = ("tolerances", "set, in, !=, isclose")
"""Shapes on which those are measured for the document alone: they run literal asserts and a function of tests each time."""
Counts = dict[str, int]


def measured(grader: Callable[[Limits], Grader]) -> Counts:
    shapes = [(trial, shape) for trial in TRIALS for shape in trial.shapes if shape.lines]
    shapes = [each for each in shapes if WRITE or each[1].name not in SLOW]
    tried = [(trial, shape, name) for trial, shape in shapes for name in trial.sample(EVERY)]
    verdicts = try_all("local", grader, tried, as_lines=True)
    counts = Counter(shape for (shape, _), verdict in verdicts.items() if verdict.score == 1)
    return {shape.name: counts[shape.name] for _, shape, _ in tried}


def block(floors: Mapping[str, Counts]) -> str:
    head = ["tests", "`HostCompare`", *(f"`{name}`, at least" for name in SHARED)]
    rows = [head, ["---"] * len(head)]
    for trial in TRIALS:
        for shape in trial.shapes:
            cells = [shape.name, f"0 of {len(trial.cheats)}"]
            for name in SHARED:
                floor = floors[name].get(shape.name)
                cells.append("" if floor is None else f"{floor} of {len(trial.sample(EVERY))}")
            rows.append(cells)
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def documented(text: str) -> dict[str, Counts]:
    found: dict[str, Counts] = {name: {} for name in SHARED}
    for line in text.splitlines()[2:]:
        shape, _, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for name, cell in zip(SHARED, cells, strict=True):
            if match := re.match(r"(\d+) of", cell):
                found[name][shape] = int(match[1])
    return found


@pytest.mark.parametrize(
    "reset", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["reset", "fresh"]
)
def test_no_cheat_is_accepted_in_isolation(reset: bool) -> None:
    """Each on one shape and the next one on another, or on all."""
    shapes = max(len(trial.shapes) for trial in TRIALS) if WRITE else 1
    refused(try_all("local", HostCompare, in_turn(shapes), reset=reset))


def test_the_document_has_what_the_other_graders_accept() -> None:
    """With SANDBOXKIT_WRITE=1, write it first."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    found = {name: measured(grader) for name, grader in SHARED.items()}
    if WRITE:
        # Lower than found: what these accept is not the same each time.
        old = block({n: {s: count * 4 // 5 for s, count in c.items()} for n, c in found.items()})
        DOCUMENT.write_text(f"{before}{BEGIN}{old}{END}{after}")
    floors = documented(old)
    assert old == block(floors), "run this test with SANDBOXKIT_WRITE=1"
    for name, counts in found.items():
        low = {shape: count for shape, count in counts.items() if count < floors[name][shape]}
        assert low == {}, f"{name} accepts fewer than the document says"
