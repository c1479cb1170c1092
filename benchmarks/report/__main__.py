"""Measure everything and write docs/benchmarks.md and its picture.

    python -m benchmarks.report [--quick] [--only KEY ...] [--busy SHARE] [--to FILE]

It exits with 1 when one of our own sides printed what it must not, and with --check also when a
target is missed.
"""

import argparse
import contextlib
import dataclasses
import datetime
import os
import platform
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.hosted_table import HOSTED, section
from benchmarks.report import environments, page, plot, rows
from benchmarks.report.machine import MARKER, Snapshot, busy, snapshot
from benchmarks.report.rounds import PATIENCE, Entry, Measured, Row, outcomes, play
from benchmarks.report.side import Side, SideError

DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
IMAGE = "sandboxkit/python:3.11"
SECONDS, QUICK_SECONDS = 720.0, 180.0
LEAST = 5.0
"""Seconds for a row that is opened late."""
LIMIT = 0.05


class Watch:
    """The machine, as `play` asks for it."""

    def __init__(self, marker: str) -> None:
        self._marker = marker
        self._before: Snapshot | None = None

    def begin(self) -> None:
        """A round begins."""
        self._before = snapshot(self._marker, os.getpid())

    def busy(self) -> float:
        """The share of the machine that others took since."""
        assert self._before is not None
        return busy(self._before, snapshot(self._marker, os.getpid()))


@contextlib.contextmanager
def opened(
    row: Row, marker: str, report: page.Report, failures: dict[str, str]
) -> Iterator[dict[str, Side]]:
    """A process for each entry of the row, with its work open; what fails is written down."""
    sides: dict[str, Side] = {}
    try:
        for entry in row.entries:
            side = _opened(entry, marker, report, failures)
            if side is not None:
                sides[entry.label] = side
        yield sides
    finally:
        for side in sides.values():
            with contextlib.suppress(SideError):
                side.shut(PATIENCE)
            side.close()


def _opened(
    entry: Entry, marker: str, report: page.Report, failures: dict[str, str]
) -> Side | None:
    try:
        python = environments.python(entry.peer)
    except environments.NoEnvironmentError as error:
        report.missing[entry.label] = failures[entry.label] = str(error)
        return None
    try:
        side = Side(entry.module, python, marker)
    except SideError as error:
        failures[entry.label] = str(error)
        return None
    if entry.peer is not None:
        report.versions[entry.peer] = side.version
    try:
        side.open(entry.measure, entry.arguments, PATIENCE)
    except SideError as error:
        failures[entry.label] = str(error)
        side.close()
        return None
    return side


def measure(
    chosen: list[Row], report: page.Report, marker: str, seconds: float, limit: float
) -> None:
    """All rows within so many seconds: each has its share of what is left, and half as much again."""
    end = time.monotonic() + seconds
    for number, row in enumerate(chosen):
        left = end - time.monotonic()
        share = 1.5 * row.weight / sum(each.weight for each in chosen[number:])
        measured = Measured(row)
        if left > 0:
            failures: dict[str, str] = {}
            with opened(row, marker, report, failures) as sides:
                now = time.monotonic()
                deadline = min(max(end, now + LEAST), now + left * share)
                measured = play(row, sides, Watch(marker), limit=limit, deadline=deadline)
            measured.failures.update(failures)
        report.measured.append(measured)
        print(_summary(measured), flush=True)


def _summary(measured: Measured) -> str:
    lines = [f"{measured.row.title}: {measured.quiet} rounds, {len(measured.busy)} skipped"]
    for entry in measured.row.entries:
        median = measured.median(entry.label)
        figure = "-" if median is None else f"{median * 1e3:.2f} ms, {1 / median:.1f}/s"
        lines.append(f"  {entry.label:<24}{measured.failures.get(entry.label, figure)}")
    return "\n".join(lines)


def _quick(row: Row) -> Row:
    entries = tuple(
        dataclasses.replace(entry, times=max(1, entry.in_flight, entry.times // 2))
        for entry in row.entries
    )
    return dataclasses.replace(row, entries=entries, rounds=min(2, row.rounds))


def _machine() -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
        return f"{os.cpu_count()} processors ({model}), Linux {platform.release()}"
    return f"{os.cpu_count()} processors, {platform.platform()}"


def _remove_left(marker: str) -> None:
    """The containers of sides that were killed; their label is this run's."""
    argv = ["docker", "ps", "--all", "--quiet", "--filter", f"label={marker}"]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout.split()
    if found:
        subprocess.run(["docker", "rm", "--force", *found], capture_output=True, timeout=120)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: about 3 minutes")
    parser.add_argument("--only", nargs="+", metavar="KEY", help="only these rows")
    parser.add_argument("--busy", type=float, default=LIMIT, help="the share others may take")
    parser.add_argument("--seconds", type=float, help="for all rows together")
    parser.add_argument(
        "--to", type=Path, help="the page to write; with --only there is none without"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 on a missed target")
    args = parser.parse_args()
    os.environ.setdefault("SANDBOXKIT_DOCKER_IMAGE", IMAGE)
    chosen = [row for row in rows.rows() if not args.only or row.key in args.only]
    is_hosted = not args.only or HOSTED in args.only
    if not (chosen or is_hosted):
        keys = (*(row.key for row in rows.rows()), HOSTED)
        parser.error(f"no such row; there are {', '.join(keys)}")
    if args.quick:
        chosen = [_quick(row) for row in chosen]

    marker = f"sandboxkit-bench-{secrets.token_hex(4)}"
    os.environ[MARKER] = marker
    report = page.Report(
        command="make bench" + (" BENCH=quick" if args.quick else ""),
        when=f"{datetime.date.today():%Y-%m-%d}",
        machine=_machine(),
        limit=args.busy,
    )
    try:
        seconds = args.seconds or (QUICK_SECONDS if args.quick else SECONDS)
        measure(chosen, report, marker, seconds, args.busy)
        if is_hosted:
            report.hosted = section(quick=args.quick)
            print(report.hosted, flush=True)
    finally:
        _remove_left(marker)
    if page_file := args.to or (None if args.only else DOCS):
        page_file.write_text(report.text())
        page_file.with_suffix(".svg").write_text(plot.svg(page.panels(report.measured)))
    missed = [each.target.says for row in report.measured for each in outcomes(row) if not each.met]
    for line in (*(f"wrong: {each}" for each in report.wrong), *(f"missed: {m}" for m in missed)):
        print(line, file=sys.stderr)
    return int(bool(report.wrong) or (args.check and bool(missed)))


if __name__ == "__main__":
    sys.exit(main())
