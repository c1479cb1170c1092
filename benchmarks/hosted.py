"""A hosted provider beside its vendor's SDK, and beside an older version, against our emulators.

Each side is a process of its own, and they take turns. Run from the root of the repository;
neither account nor network is needed:

    python -m benchmarks.hosted e2b daytona modal [--before OTHER_CHECKOUT] [--check] [--rounds 20]
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.daytona.server import emulator as daytona
from tests.e2b.server import emulator as e2b
from tests.emulators.modal.client import modal_emulator as modal

HERE = Path(__file__).resolve().parent
EMULATORS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "e2b": e2b,
    "daytona": daytona,
    "modal": modal,
}
RATIO = 1.0
"""At most so many times the SDK's latency of `true`."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What every side does, and how often in one turn."""

    name: str
    says: str
    times: int
    every: int = 1
    """In each how manieth round."""


MEASURES = (
    Measure("true", "`true`", 20),
    Measure("first", "create to first result", 1),
    Measure("at_once", "30 `true` at once", 1),
    Measure("small_file", "write and read 1 KiB", 10),
    Measure("output", "50 MB of output", 1, every=5),
)


@dataclass
class Side:
    """A process that does what it is told, and the seconds that it took."""

    name: str
    command: list[str]
    root: Path
    seconds: dict[str, list[float]] = field(default_factory=dict)
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
        said = self._answers.readline()
        if not said:
            raise SystemExit(f"{self.name} did not start: status {self._process.wait()}")
        self.version: str = json.loads(said)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        self._process.wait(60)
        self._answers.close()

    def turn(self, measure: Measure, *, counts: bool) -> None:
        """Do it once more; a side that cannot is not asked again."""
        if measure.name in self.failures:
            return
        print(measure.name, measure.times if counts else 1, file=self._requests, flush=True)
        answer = json.loads(self._answers.readline() or '"it ended"')
        if isinstance(answer, str):
            self.failures[measure.name] = answer
        elif counts:
            self.seconds.setdefault(measure.name, []).extend(answer)

    def median(self, measure: Measure) -> float | None:
        """Its seconds; None where it could not."""
        seconds = None if measure.name in self.failures else self.seconds.get(measure.name)
        return statistics.median(seconds) if seconds else None


@contextlib.contextmanager
def sides(vendor: str, before: Path | None) -> Iterator[list[Side]]:
    """Ours, the vendor's and the older one, started against one emulator."""
    root = HERE.parent
    worker = str(HERE / "hosted_worker.py")
    with contextlib.ExitStack() as stack:
        stack.enter_context(EMULATORS[vendor]())
        found = [
            stack.enter_context(Side("ours", [worker, vendor], root)),
            stack.enter_context(Side("SDK", [str(HERE / "hosted_bare.py"), vendor], root)),
        ]
        if before is not None:
            older = stack.enter_context(Side("before", [worker, vendor], before))
            if not older.version.startswith(str(before)):
                raise SystemExit(f"{before} has no sandboxkit of its own: {older.version}")
            found.append(older)
        yield found


def measured(vendor: str, before: Path | None, rounds: int) -> list[Side]:
    """Every measure on every side, in turns; the first round warms up."""
    with sides(vendor, before) as found:
        for number in range(rounds + 1):
            for measure in MEASURES:
                if number % measure.every == 0:
                    # Whoever is first in a turn meets what the last one left: it is not always one.
                    shift = number % len(found)
                    for side in found[shift:] + found[:shift]:
                        side.turn(measure, counts=number > 0)
        return found


def show(vendor: str, found: list[Side]) -> bool:
    """Print a row a measure; whether the target is met."""
    ours, sdk, *older = found
    print(f"{vendor} ({sdk.version})")
    for measure in MEASURES:
        mine = ours.median(measure)
        cells = [f"{measure.says:<24}", _milliseconds("ours", mine)]
        for side in (sdk, *older):
            other = side.median(measure)
            cells.append(_milliseconds(side.name, other))
            cells.append(f"{mine / other:5.2f}x" if mine and other else "     -")
        print("  ".join(cells))
    for side in found:
        for name, why in side.failures.items():
            print(f"  {side.name} cannot do {name}: {why}")
    mine, other = ours.median(MEASURES[0]), sdk.median(MEASURES[0])
    met = mine is not None and other is not None and mine <= RATIO * other
    print(f"  `true` at most {RATIO:g} times the SDK's: {'yes' if met else 'MISSED'}", flush=True)
    return met


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
    args = parser.parse_args()
    before = args.before and args.before.resolve()
    met = [show(name, measured(name, before, args.rounds)) for name in args.vendors]
    return 1 if args.check and not all(met) else 0


if __name__ == "__main__":
    sys.exit(main())
