"""Text views of a run: its steps, a list of its rollouts, or one whole rollout.

Uses only the standard library, so that it runs without the training packages.
"""

import math
import shutil
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations._training import plot, records

Row = Mapping[str, Any]  # Any: JSON, see rollout_record.py

_WIDTH = 80
_LISTED = 100
"""Maximum number of rollouts in a list."""


def safe(text: str) -> str:
    """Escape the control characters in a model's text, except line breaks, for a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def steps(run: Path) -> Iterator[str]:
    """Yield the lines of a table of steps, with rewards and outcomes, and of the totals.

    Raises ConfigurationError for a folder without a run.
    """
    found = _steps(run)
    if not found:
        yield "no step yet"
        return
    yield " step  rollouts  reward  cut off  for sandboxes  outcomes"
    total: Counter[str] = Counter()
    for step, row in found.items():
        outcomes = _outcomes(row)
        total += outcomes
        shown = ", ".join(f"{name} {count}" for name, count in outcomes.most_common())
        numbers = (
            f"{step:5}{row.get('rollouts') or 0:10.0f}{_number(row.get('reward'), 8, '.3f')}"
            f"{_number(row.get('truncated'), 9, '.0%')}"
            f"{_number(row.get('sandbox_wait_share'), 15, '.0%')}  "
        )
        yield from textwrap.wrap(
            numbers + shown,
            _width(),
            subsequent_indent=" " * len(numbers),
            drop_whitespace=False,
        )
    yield ""
    everything = max(1, sum(total.values()))
    yield f"{sum(total.values())} rollouts"
    for name, count in total.most_common():
        bar = "#" * round(40 * count / everything)
        yield f"  {name:<12}{count:8} {count / everything:5.0%}  {bar}".rstrip()
    yield ""
    yield "To read: --step N, --outcome NAME; one: --best, --worst, --rollout GROUP.MEMBER"


def rollouts(run: Path, step: int | None, outcome: str | None, which: str | None) -> Iterator[str]:
    """Yield the lines of a list of rollouts or, with `which`, of one whole rollout.

    `step` and `outcome` select rollouts; None selects all. `which` is "best" or "worst" by reward (the
    latest of equal ones), or GROUP.MEMBER. Raises ConfigurationError if there is no such step or rollout.
    """
    kept = records.steps(run)
    if step is not None and step not in kept:
        have = f"{kept[0]} to {kept[-1]}" if kept else "none"
        raise ConfigurationError(f"{str(run)!r} has no rollouts of step {step}; it has {have}")
    found = (
        row
        for each in (kept if step is None else [step])
        for row in records.read(run, each)
        if outcome is None or row["outcome"] == outcome
    )
    if which is None:
        yield from _listed(found)
        return
    chosen = _chosen(found, which)
    if chosen is None:
        raise ConfigurationError(f"{str(run)!r} has no such rollout")
    yield from _whole(chosen)


def _steps(run: Path) -> dict[int, Row]:
    """Return {step: row of metrics.jsonl}; for an unfinished step, the row is made from its rollouts."""
    if not (run / "metrics.jsonl").exists():
        raise ConfigurationError(f"{str(run)!r} has no metrics.jsonl: give a run's folder")
    rows = plot.rows(run / "metrics.jsonl")
    found: dict[int, Row] = {int(row["step"]): row for row in rows if "rollouts" in row}
    for step in records.steps(run):
        if step not in found:
            found[step] = _summary(list(records.read(run, step)))
    return dict(sorted(found.items()))


def _summary(rows: Sequence[Row]) -> Row:
    known = [row["reward"] for row in rows if row["reward"] is not None]
    outcomes = Counter(f"outcome/{row['outcome']}" for row in rows)
    return {
        "rollouts": len(rows),
        "reward": sum(known) / len(known) if known else None,
        "truncated": _share([row["truncated"] for row in rows]),
        **outcomes,
    }


def _share(known: Sequence[bool | None]) -> float | None:
    """Return the share of true values; None unless all values are known."""
    values = [each for each in known if each is not None]
    return sum(values) / len(values) if values and len(values) == len(known) else None


def _outcomes(row: Row) -> "Counter[str]":
    return Counter(
        {
            name.removeprefix("outcome/"): int(count)
            for name, count in row.items()
            if name.startswith("outcome/") and count
        }
    )


def _listed(rows: Iterator[Row]) -> Iterator[str]:
    yield " step   rollout  reward  outcome      tokens  calls  seconds  detail"
    count = 0
    for row in rows:
        count += 1
        if count > _LISTED:
            continue
        line = (
            f"{row['step']:5}{_name(row):>10}{_number(row['reward'], 8, '.3f')}  "
            f"{row['outcome']:<11}{_number(row['tokens']['policy'], 8, 'd')}{len(row['calls']):7}"
            f"{sum(row['seconds'].values()):9.2f}  {safe(row['detail'].partition(chr(10))[0])}"
        )
        yield next(iter(_folded(line)))
    if not count:
        yield "none"
    if count > _LISTED:
        yield f"... and {count - _LISTED} more: --step and --outcome choose"


def _chosen(rows: Iterator[Row], which: str) -> Row | None:
    if which not in ("best", "worst"):
        return next((row for row in rows if _name(row) == which), None)
    found: Row | None = None
    highest = -math.inf
    for row in rows:
        reward = row["reward"]
        value = -math.inf if reward is None else reward if which == "best" else -reward
        if value >= highest:
            found, highest = row, value
    return found


def _whole(row: Row) -> Iterator[str]:
    task = f" (task {safe(str(row['task_id']))})" if "task_id" in row else ""
    place = "" if row["row"] is None else f", row {row['row']}"
    yield f"step {row['step']}, rollout {_name(row)}{place}{task}"
    reward = "none" if row["reward"] is None else f"{row['reward']:.3f}"
    whose = {"policy": "of the policy's doing", "infra": "the infrastructure's failure"}
    notes = [
        f"reward {reward}: {row['outcome']}, {whose[row['attributable_to']]}, {row['trust']}",
        *(["the grader raised"] if row["grader_raised"] else []),
        *(["the verdict is copied from an equal rollout"] if row["remembered"] else []),
    ]
    yield from _folded("; ".join(notes))
    if row["detail"]:
        yield from _folded(safe(row["detail"]))
    known = [f"{whose} {count}" for whose, count in row["tokens"].items() if count is not None]
    cut = "; cut off at the length limit" if row["truncated"] else ""
    yield f"tokens: {', '.join(known) or 'not known'}{cut}"
    spent = [f"{part} {seconds:.2f}" for part, seconds in row["seconds"].items()]
    yield f"seconds: {', '.join(spent)}"
    for name, outcome, score, weight, seconds in row["parts"]:
        used = "" if seconds is None else f", {seconds:.2f} s of CPU time"
        yield from _folded(f"case {safe(name)}: {outcome}, {score * weight:g} of {weight:g}{used}")
    if row["cut"]:
        yield from _folded(f"shortened in this record: {', '.join(row['cut'])}")
    yield from _part("prompt", row["prompt"])
    if row["prefix"]:
        yield from _part("prefix", row["prefix"])
    for number, turn in enumerate(row["turns"]):
        tokens = "" if turn["tokens"] is None else f", {turn['tokens']} tokens"
        yield from _part(f"{turn['role']}{tokens}", turn["text"])
        for call in row["calls"]:
            if call["turn"] == number:
                ended = "error" if call["error"] else "done"
                title = f"call, {call['seconds']:.2f} s, {ended}"
                unseen = number + 1 >= len(row["turns"])
                yield from _part(f"{title}; its answer" if unseen else title, "")
                if unseen:
                    yield from _folded(safe(call["answer"]))


def _part(title: str, text: str) -> Iterator[str]:
    yield f"--- {title} ".ljust(_width(), "-")
    if text:
        yield from _folded(safe(text))


def _folded(text: str) -> Iterator[str]:
    """Yield lines wrapped to the terminal's width, with the indentation kept."""
    most = _width()
    for line in text.split("\n"):
        start = width = 0
        for end, char in enumerate(line):
            wide = 2 if unicodedata.east_asian_width(char) in "WF" else 1
            if width + wide > most:
                yield line[start:end]
                start, width = end, 0
            width += wide
        yield line[start:]


def _name(row: Row) -> str:
    return f"{row['group']}.{row['member']}"


def _number(value: float | None, width: int, form: str) -> str:
    return f"{'-' if value is None else format(value, form):>{width}}"


def _width() -> int:
    """Return the terminal's width, at most 160; 80 for a pipe."""
    return min(shutil.get_terminal_size((_WIDTH, 24)).columns, 2 * _WIDTH)
