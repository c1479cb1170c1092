"""Compares a hosted provider with its vendor's SDK and with an older version, against our emulators.

Each side is a separate process, and they alternate. `--latency` is the round-trip time to the emulator
in milliseconds. Run it from the root of the repository; it needs neither an account nor a network:

    python -m benchmarks.hosted e2b daytona modal [--before OTHER_CHECKOUT] [--check] [--rounds 20]
        [--latency 50] [--baked] [--only first,true]
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self
from unittest import mock

from benchmarks.distance import Distance
from tests.daytona.server import emulator as daytona
from tests.e2b.server import emulator as e2b
from tests.emulators._server import Server
from tests.modal.server import emulator as modal

HERE = Path(__file__).resolve().parent
EMULATORS: dict[str, Callable[..., AbstractContextManager[Server]]] = {
    "e2b": e2b,
    "daytona": daytona,
    "modal": modal,
}


class HostedError(Exception):
    """Raised if a side of the comparison does not start."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One measurement, which all sides repeat alternately."""

    name: str
    says: str
    times: int
    every: int = 1
    """The measurement is taken in every n-th round."""
    ratio: float | None = None
    """The highest allowed ratio to the SDK's time."""
    baked: float | None = None
    """The highest allowed ratio to the SDK's time if the image contains the agent."""


MEASURES = (
    Measure("true", "`true`", 20, ratio=1.0, baked=1.0),
    Measure("first", "create to first result", 1, ratio=1.5, baked=1.2),
    Measure("at_once", "30 `true` at once", 1),
    Measure("small_file", "write and read 1 KiB", 10),
    Measure("megabyte", "write and read 1 MB", 2, ratio=1.5, baked=1.5),
    Measure("listing", "list 50 files", 5),
    Measure("output", "50 MB of output", 1, every=5),
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests and bytes between clients and the emulator."""

    requests: int
    bytes_up: int
    bytes_down: int

    def __sub__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.requests - other.requests,
            self.bytes_up - other.bytes_up,
            self.bytes_down - other.bytes_down,
        )


class Meter:
    """Counts the traffic of one emulator."""

    def __init__(self, emulator: Server, way: Distance) -> None:
        self._emulator, self._way = emulator, way

    def read(self) -> Traffic:
        """Return the traffic since the start."""
        return Traffic(len(self._emulator.requests), self._way.bytes_up, self._way.bytes_down)


@dataclass
class Side:
    """A worker process for one side of the comparison, and the seconds of its measurements."""

    name: str
    command: list[str]
    root: Path
    meter: Meter
    seconds: dict[str, list[float]] = field(default_factory=dict)
    traffic: dict[str, list[Traffic]] = field(default_factory=dict)
    """The samples of one measure, one entry per repetition."""
    failures: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-P", *self.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root)},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests: IO[str] = self._process.stdin
        self._answers: IO[str] = self._process.stdout
        line = self._answers.readline()
        if not line:
            raise HostedError(f"{self.name} did not start: status {self._process.wait()}")
        self.version: str = json.loads(line)
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        self._process.wait(60)
        self._answers.close()

    def turn(self, measure: Measure, *, counts: bool) -> None:
        """Take a measurement once; a side that fails it is skipped from then on.

        Without `counts` the result is discarded.
        """
        if measure.name in self.failures:
            return
        for _ in range(measure.times if counts else 1):
            before = self.meter.read()
            print(measure.name, file=self._requests, flush=True)
            answer = json.loads(self._answers.readline() or '"it ended"')
            if isinstance(answer, str):
                self.failures[measure.name] = answer
                return
            spent = self.meter.read() - before
            print("undo", file=self._requests, flush=True)
            self._answers.readline()
            if counts:
                self.seconds.setdefault(measure.name, []).append(answer)
                self.traffic.setdefault(measure.name, []).append(spent)

    def median(self, measure: Measure) -> float | None:
        """Return the median seconds of a measure; None where the side failed."""
        seconds = None if measure.name in self.failures else self.seconds.get(measure.name)
        return statistics.median(seconds) if seconds else None

    def usual(self, measure: Measure) -> Traffic | None:
        """Return the median traffic of a measure; None without samples."""
        found = None if measure.name in self.failures else self.traffic.get(measure.name)
        if not found:
            return None
        return Traffic(
            round(statistics.median(each.requests for each in found)),
            round(statistics.median(each.bytes_up for each in found)),
            round(statistics.median(each.bytes_down for each in found)),
        )


@contextlib.contextmanager
def distant(vendor: str, latency: float) -> Iterator[Meter]:
    """Run an emulator of the vendor behind a round trip of `latency` seconds.

    The vendor's environment variables point to it. Yields the meter of its traffic.
    """
    with EMULATORS[vendor]("benchmarks.vendor_calls") as emulator:
        where = urllib.parse.urlsplit(emulator.url)
        assert where.hostname is not None
        assert where.port is not None
        with Distance(where.hostname, where.port, latency) as way:
            leading = {
                name: value.replace(emulator.url, way.url)
                for name, value in os.environ.items()
                if emulator.url in value
            }
            if vendor == "modal":
                emulator.ask("reached_at", url=way.url)
            with mock.patch.dict(os.environ, leading):
                yield Meter(emulator, way)


@contextlib.contextmanager
def sides(vendor: str, before: Path | None, latency: float, *, baked: bool) -> Iterator[list[Side]]:
    """Yield the started sides: ours, the SDK's and, with `before`, the older version's."""
    root = HERE.parent
    worker, bare = str(HERE / "hosted_worker.py"), str(HERE / "hosted_bare.py")
    with contextlib.ExitStack() as stack:
        state = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(mock.patch.dict(os.environ, {"SANDBOXKIT_STATE_DIR": state}))
        meter = stack.enter_context(distant(vendor, latency))
        image: list[str] = []
        """The baked image, used by both sides, because starting from a snapshot takes a vendor longer."""
        if baked:
            bake = [sys.executable, "-m", "sandboxkit", "bake", "-p", vendor]
            done = subprocess.run(bake, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
            image.append(done.stdout.split()[1])
        found = [
            stack.enter_context(Side("ours", [worker, vendor], root, meter)),
            stack.enter_context(Side("SDK", [bare, vendor, *image], root, meter)),
        ]
        if before is not None:
            older = stack.enter_context(Side("before", [worker, vendor], before, meter))
            if not older.version.startswith(str(before)):
                raise HostedError(f"{before} has no sandboxkit of its own: {older.version}")
            found.append(older)
        yield found


def measured(
    vendor: str,
    before: Path | None,
    rounds: int,
    latency: float,
    measures: Sequence[Measure],
    *,
    baked: bool,
) -> list[Side]:
    """Take all measures on all sides, alternately; the first round is a warm-up and does not count."""
    with sides(vendor, before, latency, baked=baked) as found:
        for number in range(rounds + 1):
            for measure in measures:
                if number % measure.every == 0:
                    # The order rotates, because the side before may still affect the emulator.
                    shift = number % len(found)
                    for side in found[shift:] + found[:shift]:
                        side.turn(measure, counts=number > 0)
        return found


def show(vendor: str, found: list[Side], measures: Sequence[Measure], *, baked: bool) -> bool:
    """Print a row per measure and the traffic of each side; return whether the targets are met."""
    ours, *others = found
    all_met = True
    print(f"{vendor} ({others[0].version}{', baked' if baked else ''})")
    for measure in measures:
        mine = ours.median(measure)
        cells = [f"{measure.says:<24}", _milliseconds("ours", mine)]
        for side in others:
            other = side.median(measure)
            cells.append(_milliseconds(side.name, other))
            cells.append(f"{mine / other:5.2f}x" if mine and other else "     -")
        limit, sdk = measure.baked if baked else measure.ratio, others[0].median(measure)
        if limit is not None:
            met = mine is not None and sdk is not None and mine <= limit * sdk
            cells.append(f"at most {limit:g}x: {'yes' if met else 'MISSED'}")
            all_met = all_met and met
        print("  ".join(cells), flush=True)
        for side in found:
            if (each := side.usual(measure)) is not None:
                print(
                    f"    {side.name:>6}: {each.requests} requests, {each.bytes_up} bytes up, "
                    f"{each.bytes_down} down"
                )
    for side in found:
        for name, why in side.failures.items():
            print(f"  {side.name} cannot do {name}: {why}")
    return all_met


def _milliseconds(name: str, seconds: float | None) -> str:
    return f"{name:>6} {'-' if seconds is None else f'{1000 * seconds:.1f}':>8} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare hosted providers with the vendors' SDKs.")
    parser.add_argument("vendors", nargs="+", choices=sorted(EMULATORS))
    parser.add_argument(
        "--before", type=Path, metavar="PATH", help="a checkout of an older version"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--latency", type=float, default=0, metavar="MILLISECONDS")
    parser.add_argument("--baked", action="store_true", help="let ours bake its agent first")
    parser.add_argument("--only", default="", metavar="NAME,NAME", help="leave out other measures")
    args = parser.parse_args()
    before = args.before and args.before.resolve()
    wanted = args.only.split(",") if args.only else [each.name for each in MEASURES]
    measures = [each for each in MEASURES if each.name in wanted]
    latency = args.latency / 1000
    try:
        met = [
            show(
                name,
                measured(name, before, args.rounds, latency, measures, baked=args.baked),
                measures,
                baked=args.baked,
            )
            for name in args.vendors
        ]
    except HostedError as error:
        raise SystemExit(str(error)) from error
    return 1 if args.check and not all(met) else 0


if __name__ == "__main__":
    sys.exit(main())
