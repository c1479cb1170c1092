"""docs/benchmarks.md, written from what one run measured."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.report.isolation import ISOLATION
from benchmarks.report.plot import Bar, Panel
from benchmarks.report.prices import Assumptions, table
from benchmarks.report.rounds import Entry, Measured, Outcome, outcomes

HEAD = """\
# Benchmarks

For users who compare sandboxkit with other libraries: how many jobs a second each does on the same machine.
The targets and the picture are about that.

Written by `{command}`; do not edit. {when}, {machine}.

Blue is sandboxkit:

![jobs a second](benchmarks.svg)

## Targets

A target is a ratio of two sides that took turns on one machine: for "at least" how many times as fast ours is,
for "at most" how many times the time it takes. All other figures on this page depend on the machine, and are
for information. A missed target is work to do.

{targets}

## How it was measured

Each row was measured in turns: in a round every side does its share once, who is first changes, and
the figures are medians over the rounds (smallest to largest in brackets). Each side is a process of
its own, each peer has an environment of its own with pinned versions ({versions}), and
the output and status of every single command is compared with what they must be: a side whose output
is wrong has no figures. A round in which other programs or the hypervisor took more than {limit:.0%} of
the machine is not counted: {skipped} of {rounds} rounds were skipped, and one more a row warmed up.
"Times the first" = seconds per operation / seconds per operation of the first line, which is ours:
above 1 is slower.

`python -m benchmarks.report --only KEY` measures a single row and prints it; each section names its KEY.
"""


@dataclass
class Report:
    """One run: its rows in order, and what has to be said beside them."""

    command: str
    when: str
    machine: str
    limit: float
    measured: list[Measured] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """Peers that could not be installed, and why."""
    versions: dict[str, str] = field(default_factory=dict)
    hosted: str = ""
    """The section about the hosted providers; "" where they were not measured."""

    @property
    def wrong(self) -> list[str]:
        """Our own sides and floors that failed."""
        return [
            f"{measured.row.key}: {label}: {why}"
            for measured in self.measured
            for entry in measured.row.entries
            for label, why in measured.failures.items()
            if entry.label == label and entry.peer is None
        ]

    def text(self) -> str:
        """The page."""
        skipped = sum(len(each.busy) for each in self.measured)
        quiet = sum(each.quiet for each in self.measured)
        parts = [
            HEAD.format(
                command=self.command,
                when=self.when,
                machine=self.machine,
                versions=", ".join(
                    f"{name} {what}" for name, what in sorted(self.versions.items())
                ),
                limit=self.limit,
                targets="\n".join(_targets([e for row in self.measured for e in outcomes(row)])),
                skipped=skipped,
                rounds=skipped + quiet,
            ),
            *(f"{name} is missing: {why}.\n" for name, why in self.missing.items()),
            *("\n".join(_section(each)) + "\n" for each in self.measured),
            *([self.hosted] if self.hosted else []),
            "## What each isolates\n",
            "As measured here, by its code and its arguments in `benchmarks/sides`.\n",
            ISOLATION,
            "## What 10,000 jobs cost on hosted sandboxes\n",
            "An estimate from public list prices (`python -m benchmarks.report.prices --help` has its\n"
            "parameters): first with a sandbox for each job, then with 10 that are kept and reset.\n",
            table(Assumptions()) + "\n",
        ]
        return "\n".join(parts)


def _targets(found: Sequence[Outcome]) -> Iterator[str]:
    yield "| what is compared | target | measured | |"
    yield "|---|---|---|---|"
    marks = {True: "met", False: "**missed**", None: "not measured"}
    for each in found:
        figure = "" if each.value is None else _number(each.value)
        target = each.target
        says = f"{target.bound} {target.value:g} times"
        yield f"| {target.says} | {says} | {figure} | {marks[each.met]} |"


def _section(measured: Measured) -> Iterator[str]:
    row = measured.row
    yield f"## {row.title}\n"
    if row.means:
        yield f"{row.means}\n"
    share = ""
    if measured.busy:
        taken = statistics.median(measured.busy)
        share = f", {len(measured.busy)} skipped in which others took {taken:.0%} of the machine"
    yield f"`{row.key}`: {measured.quiet} rounds{share}. {row.notes}".rstrip() + "\n"
    facts = _facts(measured)
    yield f"| | {row.unit} | times the first | client, ms of processor each |{''.join(f' {f} |' for f in facts)}"
    yield "|---|---|---|---|" + "---|" * len(facts)
    first = measured.median(row.entries[0].label)
    for entry in row.entries:
        yield _line(measured, entry, first, facts)


def _facts(measured: Measured) -> Mapping[str, str]:
    """Names of other numbers, with their headings in the table."""
    known = {
        "resident_mb": "client, MB resident",
        "each_mb": "MB a sandbox",
        "growth_mb": "growth of the client's peak, MB",
    }
    names = {name for turns in measured.turns.values() for turn in turns for name in turn}
    return {heading: name for name, heading in known.items() if name in names}


def _line(measured: Measured, entry: Entry, first: float | None, facts: Mapping[str, str]) -> str:
    label = entry.label
    if why := measured.failures.get(label):
        return f"| {label} | failed: {why.replace('|', '/')} | | |" + " |" * len(facts)
    median, each = measured.median(label), measured.each(label)
    if median is None:
        why = "no quiet round" if measured.busy else "no time was left"
        return f"| {label} | {why} | | |" + " |" * len(facts)
    shown = [_unit(measured, seconds) for seconds in (median, min(each), max(each))]
    low, high = sorted(shown[1:])
    ratio = "" if first is None else f"{_number(median / first)}"
    processor = measured.fact(label, "processor") or 0.0
    cells = [
        f"{_number(shown[0])} ({_number(low)} to {_number(high)})",
        ratio,
        _number(processor / entry.times / entry.each * 1e3),
        *(_number(measured.fact(label, name) or 0.0) for name in facts.values()),
    ]
    return f"| {label} | {' | '.join(cells)} |"


def _unit(measured: Measured, seconds: float) -> float:
    return 1 / seconds if measured.row.unit == "per second" else seconds * 1e3


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


PICTURED = ("run-python-8", "docker-living-python", "mbpp", "docker-fresh-python")


def panels(rows: Sequence[Measured]) -> list[Panel]:
    """The picture's panels: jobs a second, from a job in a sandbox that is reused to one in a fresh one."""
    measured = {each.row.key: each for each in rows}
    found = []
    for one in (measured[key] for key in PICTURED if key in measured):
        bars = [
            Bar(entry.label, 1 / median, entry.module == "ours")
            for entry in one.row.entries
            if not entry.measure.startswith("floor")
            and (median := one.median(entry.label)) is not None
        ]
        if bars:
            found.append(Panel(f"{one.row.title} (a second)".replace("`", ""), bars))
    return found
