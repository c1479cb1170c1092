"""A row of the report: its sides in turns, round by round, until enough rounds were quiet."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from benchmarks.report.side import SideError

Turn = Mapping[str, float]
PATIENCE = 45.0
"""Seconds for one side's turn, past which it has failed."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One side of a row: what it opens, and how often it does it in a turn."""

    label: str
    module: str
    measure: str
    arguments: dict[str, Any]
    times: int
    peer: str | None = None
    """The peer whose environment the side needs; None for ours."""
    in_flight: int = 1
    each: int = 1
    """How many operations one time is."""


@dataclass(frozen=True, slots=True)
class Target:
    """A bound for the ratio of two entries' seconds an operation.

    "At least" bounds how many times as fast as `other` the entry is, "at most" how many times the time it takes.
    """

    says: str
    entry: str
    other: str
    bound: Literal["at least", "at most"]
    value: float


@dataclass(frozen=True, slots=True)
class Row:
    """What is compared, in which unit, and what is asked of it."""

    key: str
    title: str
    unit: Literal["ms", "per second"]
    entries: tuple[Entry, ...]
    rounds: int = 5
    means: str = ""
    """One sentence for users: the meaning of the row."""
    weight: float = 1.0
    """This row's share of the total time, relative to the other rows' weights."""
    targets: tuple[Target, ...] = ()
    notes: str = ""


@dataclass
class Measured:
    """The turns of the quiet rounds, by label, and what went wrong."""

    row: Row
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    quiet: int = 0
    busy: list[float] = field(default_factory=list)
    """The share of the machine that other programs used, for each skipped round."""

    def each(self, label: str) -> list[float]:
        """Seconds an operation, a number for each quiet round."""
        entry = next(entry for entry in self.row.entries if entry.label == label)
        return [turn["seconds"] / entry.times / entry.each for turn in self.turns.get(label, ())]

    def median(self, label: str) -> float | None:
        """The median of `each`; None where there is none."""
        seconds = self.each(label)
        return statistics.median(seconds) if seconds else None

    def fact(self, label: str, name: str) -> float | None:
        """The median of another number of its turns."""
        found = [turn[name] for turn in self.turns.get(label, ()) if name in turn]
        return statistics.median(found) if found else None


class Player(Protocol):
    """What a round needs of a side; see `Side`."""

    def turn(self, times: int, in_flight: int, timeout: float = ...) -> Turn:
        """Do the work and say what it took."""
        ...


class Machine(Protocol):
    """Says how busy others made the machine during a round."""

    def begin(self) -> None:
        """A round begins."""
        ...

    def busy(self) -> float:
        """The share that others took since it began."""
        ...


def play(
    row: Row,
    players: Mapping[str, Player],
    machine: Machine,
    *,
    limit: float,
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
) -> Measured:
    """Take turns until `row.rounds` rounds were quiet or the deadline is near.

    After one round to warm up, which counts for nothing, who is first changes from round to round.
    A round in which others took more than `limit` of the machine is skipped. An entry that fails
    drops out of the row and keeps what it failed with; its times before are dropped.
    """
    measured = Measured(row)
    entries = [entry for entry in row.entries if entry.label in players]
    number, longest = 0, 0.0
    while measured.quiet < row.rounds and entries and clock() + longest < deadline:
        machine.begin()
        started = clock()
        turns: dict[str, Turn] = {}
        for entry in _rotated(entries, number):
            try:
                turns[entry.label] = players[entry.label].turn(
                    entry.times if number else 1, entry.in_flight if number else 1, PATIENCE
                )
            except SideError as error:
                measured.failures[entry.label] = str(error)
                measured.turns.pop(entry.label, None)
        entries = [entry for entry in entries if entry.label not in measured.failures]
        share = machine.busy()
        if number:
            longest = max(longest, clock() - started)
            if share > limit:
                measured.busy.append(share)
            else:
                measured.quiet += 1
                for label, turn in turns.items():
                    measured.turns.setdefault(label, []).append(turn)
        number += 1
    return measured


def _rotated(entries: Sequence[Entry], number: int) -> list[Entry]:
    first = number % len(entries)
    return [*entries[first:], *entries[:first]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A target beside the ratio that was measured; `value` is None where none was."""

    target: Target
    value: float | None

    @property
    def met(self) -> bool | None:
        """Whether it is; None where nothing was measured."""
        if self.value is None:
            return None
        at_least = self.target.bound == "at least"
        return self.value >= self.target.value if at_least else self.value <= self.target.value


def outcomes(measured: Measured) -> list[Outcome]:
    """Each target of the row, with its ratio."""
    return [Outcome(target, _value(measured, target)) for target in measured.row.targets]


def _value(measured: Measured, target: Target) -> float | None:
    seconds, other = measured.median(target.entry), measured.median(target.other)
    if seconds is None or other is None:
        return None
    return other / seconds if target.bound == "at least" else seconds / other
