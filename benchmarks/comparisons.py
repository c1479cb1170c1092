"""One comparison of two ways to do the same thing, and the rounds that measure it."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two medians, their ratio in the direction of the target, and whether it is met."""

    name: str
    ours: float
    other: float
    other_is: str
    unit: str
    ratio: float
    """other / ours where more is better ("at least"), ours / other otherwise."""
    bound: Literal["at least", "at most"]
    target: float

    @property
    def met(self) -> bool:
        """Whether the ratio is on the right side of the target."""
        at_least = self.bound == "at least"
        return self.ratio >= self.target if at_least else self.ratio <= self.target

    def row(self) -> str:
        """A line of the table."""
        sign, mark = (">=" if self.bound == "at least" else "<="), "" if self.met else "  MISSED"
        figures = f"{self.ours:>9.2f} {self.unit:<3}{self.other:>8.2f} {self.unit:<3}"
        return f"{self.name:<54}{figures}{self.ratio:>8.2f}x {sign} {self.target:g}x{mark}"


def faster(name: str, ours: float, other: float, other_is: str, target: float) -> Comparison:
    """Our seconds should be at least `target` times less than the other's."""
    return Comparison(
        name, ours * 1e3, other * 1e3, other_is, "ms", other / ours, "at least", target
    )


def interleaved(rounds: int, *works: Callable[[], object], repeats: int = 20) -> list[float]:
    """The median seconds of each piece of work, over all rounds after one warm-up.

    Each is done several times in a row, so that the other one's aftermath (dockerd still
    clearing up) does not decide about the median.
    """
    seconds: list[list[float]] = [[] for _ in works]
    for number in range(rounds + 1):
        for work, times in zip(works, seconds, strict=True):
            for _ in range(repeats):
                started = time.perf_counter()
                work()
                if number:
                    times.append(time.perf_counter() - started)
    return [statistics.median(times) for times in seconds]
