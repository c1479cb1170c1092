"""What came of one leg, read from what it left in its folder."""

import json
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.grpo_overnight import faults
from benchmarks.grpo_overnight.plan import Leg, Progress
from sandboxkit.integrations.grpo import plot, records

__all__ = ["Outcome", "beside", "read"]

_LINE = re.compile(r"\n    x=x(\+|-|\*|//)([235]+)")
_LAST = "\n    return x"
_END = "<eos>"
_NEAR = 60.0
Row = dict[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a leg, whether it is done or not."""

    progress: Progress
    held_out: dict[int, float]
    """The pass rate by step."""
    steps: list[Row]
    """The metrics of each."""
    looks: list[Row]
    injected: dict[str, int]
    resumed: list[int]
    """The steps after which it went on."""
    lost: int
    """How often the trainer lost a server."""
    back: int
    """How often it took one back."""
    outcomes: Counter[str]
    """Of rollouts."""
    kept: int
    """Rollouts on disk."""
    known: int
    """Of those, the ones whose reward can be told from what they wrote, and that have one."""
    wrong: int
    """Of those, the ones that have another."""
    complaints: list[str]
    """What is not as it has to be."""
    made: list[float]
    """When each step's rollouts were written, in order, in seconds of the clock."""


def beside(one: Sequence[float], other: Sequence[float]) -> float:
    """The share of the moments in `one` that have one of `other`, in order, within a minute."""
    near = sum(bisect_left(other, at - _NEAR) < bisect_right(other, at + _NEAR) for at in one)
    return near / len(one) if one else 0.0


def read(leg: Leg, train: Path) -> Outcome | None:
    """Look it up; None where it never began. `train` are the rows that it trained on."""
    if not (leg.folder / "progress.json").exists():
        return None
    rows = plot.rows(leg.run / "metrics.jsonl")
    said = leg.log.read_text(errors="replace") if leg.log.exists() else ""
    steps = [row for row in rows if "reward" in row]
    tasks = [json.loads(line) for line in train.read_text().splitlines()]
    kept = known = wrong = 0
    for row in _rollouts(leg.run):
        kept += 1
        right = _right(tasks[row["row"]], row)
        if right is not None and row["reward"] is not None:
            known += 1
            wrong += row["reward"] != float(right)
    numbers, files = [int(row["step"]) for row in steps], records.steps(leg.run)
    complaints = [
        f"the {what} are not of each step once: {len(found)} for {max(found, default=0)} steps"
        for what, found in (("metrics", numbers), ("rollouts", files))
        if found != list(range(1, len(found) + 1)) or len(found) != len(numbers)
    ]
    return Outcome(
        progress=Progress.load(leg),
        held_out={int(row["step"]): row["held_out"] for row in rows if "held_out" in row},
        steps=steps,
        looks=[row for row in plot.rows(leg.looks) if "rss_mb" in row],
        injected=faults.injected(leg.faults) if leg.faults.is_dir() else {},
        resumed=[int(step) for step in re.findall(r": goes on after step (\d+)", said)],
        lost=len(re.findall(r"servers are left$", said, re.MULTILINE)),
        back=len(re.findall(r" is back; there are \d+ of \d+$", said, re.MULTILINE)),
        outcomes=_outcomes(steps),
        kept=kept,
        known=known,
        wrong=wrong,
        complaints=complaints,
        made=sorted(file.stat().st_mtime for file in leg.run.glob("rollouts/step-*.jsonl.gz")),
    )


def _outcomes(steps: Sequence[Row]) -> Counter[str]:
    found = Counter[str]()
    for row in steps:
        for name, value in row.items():
            if name.startswith("outcome/"):
                found[name.removeprefix("outcome/")] += int(value)
    return found


def _rollouts(run: Path) -> Iterator[Row]:
    for step in records.steps(run):
        yield from records.read(run, step)


def _right(task: Row, row: Row) -> bool | None:
    """Whether what was written is right; None where it is no plain program, which we do not run."""
    text = "".join(turn["text"] for turn in row["turns"]).removesuffix(_END)
    if not text.endswith(_LAST):
        return None
    body = text.removesuffix(_LAST)
    lines = list(_LINE.finditer(body))
    if "".join(line[0] for line in lines) != body:
        return None
    return all(_value(lines, case["args"][0]) == case["expected"] for case in task["cases"])


def _value(lines: Sequence["re.Match[str]"], x: int) -> int:
    for line in lines:
        number = int(line[2])
        x = {"+": x + number, "-": x - number, "*": x * number, "//": x // number}[line[1]]
    return x
