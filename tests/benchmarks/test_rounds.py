"""Only quiet rounds count, of which others' processor time is seen, and only times of commands whose output was right."""

import dataclasses
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import page
from benchmarks.report.machine import MARKER, Process, Snapshot, busy, snapshot
from benchmarks.report.rounds import Entry, Measured, Row, Target, outcomes, play
from benchmarks.report.side import Side, SideError
from benchmarks.sides.serve import Work, WrongOutputError, expect, turn

HELLO = {"argv": ["echo", "hello"], "stdout": "hello\n"}


class Shares:
    """A machine of which others take what the list says, round by round."""

    def __init__(self, *shares: float) -> None:
        self._shares = iter(shares)

    def begin(self) -> None:
        pass

    def busy(self) -> float:
        return next(self._shares)


class Counted:
    """A side that takes as many seconds as it has taken turns."""

    def __init__(self, turns: list[str], label: str) -> None:
        self._turns, self._label, self._taken = turns, label, 0

    def turn(self, times: int, in_flight: int, timeout: float = 0) -> Mapping[str, float]:
        self._turns.append(self._label)
        self._taken += 1
        return {"seconds": float(self._taken)}


def row(*labels: str, rounds: int = 2) -> Row:
    entries = tuple(Entry(label, "bare", "fresh", HELLO, 1) for label in labels)
    return Row("key", "title", "ms", entries, rounds)


def played(row: Row, *shares: float, clock: Callable[[], float] = lambda: 0.0) -> Measured:
    turns: list[str] = []
    players = {entry.label: Counted(turns, entry.label) for entry in row.entries}
    return play(row, players, Shares(*shares), limit=0.05, deadline=9.0, clock=clock)


def test_busy_rounds_and_the_first_are_skipped_and_counted() -> None:
    measured = played(row("a", "b"), 0.0, 0.01, 0.2, 0.06, 0.04)
    assert measured.each("a") == measured.each("b") == [2.0, 5.0]
    assert (measured.quiet, measured.busy) == (2, [0.2, 0.06])
    turns: list[str] = []
    players = {label: Counted(turns, label) for label in "ab"}
    play(row("a", "b"), players, Shares(0, 0, 0), limit=0.05, deadline=9, clock=lambda: 0.0)
    assert turns == ["a", "b", "b", "a", "a", "b"], "the sides take turns in going first"


def test_a_row_ends_at_its_deadline_on_a_busy_machine() -> None:
    ticks = count()
    measured = played(row("a"), *[0.9] * 1000, clock=lambda: float(next(ticks)))
    assert measured.quiet == 0
    assert measured.median("a") is None
    assert "no quiet round" in page.Report("make bench", "", "", 0.05, [measured]).text()


def test_targets_are_ratios_of_seconds() -> None:
    targets = (
        Target("faster", "a", "b", "at least", 3),
        Target("near", "b", "a", "at most", 3),
        Target("not measured", "c", "a", "at least", 1),
    )
    measured = Measured(dataclasses.replace(row("a", "b", "c"), targets=targets))
    measured.turns = {"a": [{"seconds": 1.0}], "b": [{"seconds": 4.0}]}
    found = [(each.value, each.met) for each in outcomes(measured)]
    assert found == [(4.0, True), (4.0, False), (None, None)]


@contextmanager
def side(arguments: Mapping[str, object]) -> Iterator[Side]:
    found = Side("bare", Path(sys.executable), "test")
    try:
        found.open("fresh", dict(arguments))
        yield found
    finally:
        found.close()


def test_a_side_with_a_wrong_output_has_no_figures(tmp_path: Path) -> None:
    file = tmp_path / "count"
    turns_wrong = f"echo x >> {file}; test $(wc -l < {file}) -lt 4 && echo hello || echo no"
    with side(HELLO) as right, side({**HELLO, "argv": ["sh", "-c", turns_wrong]}) as wrong:
        players = {"right": right, "wrong": wrong}
        four, machine = row("right", "wrong", rounds=4), Shares(*[0.0] * 6)
        measured = play(four, players, machine, limit=0.05, deadline=float("inf"))
    assert len(measured.each("right")) == 4
    assert measured.each("wrong") == []
    assert "got (0, 'no\\n')" in measured.failures["wrong"]
    with (
        side({**HELLO, "argv": ["sh", "-c", "echo hello; exit 3"]}) as failing,
        pytest.raises(SideError, match=r"got \(3, 'hello"),
    ):
        failing.turn(1, 1)
    report = page.Report("make bench", "", "", 0.05, [measured])
    assert len(report.wrong) == 1
    assert "| wrong | failed: WrongOutputError" in report.text()


@pytest.mark.anyio
async def test_one_wrong_command_among_many_fails_the_turn() -> None:
    def one(number: int) -> None:
        expect("number", number == 7, False)

    async def one_async(number: int) -> None:
        one(number)

    with nullcontext(Work(one)) as work, pytest.raises(WrongOutputError):
        await turn(work, 8, 2)
    with pytest.RaisesGroup(WrongOutputError):
        await turn(Work(one_async), 8, 2)


SHARES = tomllib.loads((Path(__file__).parent / "machine.toml").read_text())


@pytest.mark.parametrize("case", SHARES["after"], ids=str)
def test_shares_of_the_machine(case: dict[str, Any]) -> None:
    def seconds(processes: list[Any], at: float, stolen: float) -> Snapshot:
        table = {pid: Process(pid, parent, "other", used) for pid, parent, used in processes}
        return Snapshot(at, table, stolen)

    after = seconds(case["processes"], case.get("at", 2.0), case.get("stolen", 0.0))
    assert busy(seconds(SHARES["before"], 0.0, 0.0), after, processors=2) == case["share"]


def test_cpu_time_counts_the_daemon_and_its_containers(tmp_path: Path) -> None:
    def process(pid: int, parent: int, name: str, environment: bytes = b"") -> None:
        folder = tmp_path / str(pid)
        folder.mkdir()
        fields = ["S", str(parent), *["0"] * 9, "10", "20", "30", "40", *["0"] * 4, "7"]
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}")
        (folder / "environ").write_bytes(environment)

    (tmp_path / "stat").write_text("cpu  1 2 3 4 5 6 7 250 0 0\n")
    process(1, 0, "init")
    process(2, 0, "kthreadd")
    process(20, 2, "kworker")
    process(30, 1, "dockerd")
    process(40, 1, "containerd-shim")
    process(41, 40, "python3")
    process(50, 1, "a (b) c", f"A=1\0{MARKER}=run\0".encode())
    process(51, 50, "child")
    process(70, 60, "this one")
    process(71, 70, "its child")
    process(60, 1, "stranger", f"{MARKER}=other".encode())
    found = snapshot("run", 70, tmp_path)
    assert sorted(found.others) == [1, 60]
    assert found.others[60].seconds == 100 / os.sysconf("SC_CLK_TCK")
    assert found.stolen == 250 / os.sysconf("SC_CLK_TCK")
