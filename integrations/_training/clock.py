"""Measures how much time rollouts, and training steps, spend in each part: sampling, grading, ..."""

import math
import threading
import time
from collections.abc import MutableMapping, Sequence
from typing import Literal, Self

Part = Literal["sampling", "queue", "start", "tools", "grading"]
PARTS: tuple[Part, ...] = ("sampling", "queue", "start", "tools", "grading")
"""`sampling`: the engine generates. `queue`: waiting for one of `grading.max_concurrency` slots.
`start`: the rollout's sandbox starts. `tools`: tool calls, reading their results, and stopping the
sandbox. `grading`: the grader, including its own sandboxes."""


def percentiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile as {`name`_p50, `name`_p99}; NaN if `seconds` is empty."""
    ordered = sorted(seconds)
    return {
        f"{name}_p{percent}": ordered[len(ordered) * percent // 100] if ordered else math.nan
        for percent in (50, 99)
    }


class StageTimes:
    """Counts the rollouts that are in each part, and divides elapsed time among the parts. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: dict[Part, int] = dict.fromkeys(PARTS, 0)
        self._spent: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
        self._since = time.monotonic()

    def spent(self) -> dict[Part, float]:
        """Return the elapsed seconds by part, since this object was created.

        Time in which any rollout is in `sampling` counts as sampling. Other time is divided in
        proportion to the number of rollouts in each part; time without rollouts is not counted. More
        sandboxes could save the time of `queue`.
        """
        with self._lock:
            self._advance()
            return dict(self._spent)

    def move(self, before: Part | None, after: Part | None) -> None:
        """Move one rollout from part `before` to part `after`; None means outside of the rollout."""
        with self._lock:
            self._advance()
            if before is not None:
                self._inside[before] -= 1
            if after is not None:
                self._inside[after] += 1

    def _advance(self) -> None:
        now = time.monotonic()
        elapsed, self._since = now - self._since, now
        if self._inside["sampling"]:
            self._spent["sampling"] += elapsed
        elif under_way := sum(self._inside.values()):
            for part, count in self._inside.items():
                self._spent[part] += elapsed * count / under_way


class Timer:
    """Context manager that adds one rollout's time to `seconds`, by part."""

    def __init__(self, clock: StageTimes, seconds: MutableMapping[Part, float]) -> None:
        self._clock, self.seconds = clock, seconds
        self._part: Part | None = None
        self._since = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.enter(None)

    def enter(self, part: Part | None) -> None:
        """Attribute the time from now on to `part`; None: to no part."""
        now = time.monotonic()
        if self._part is not None:
            self.seconds[self._part] = self.seconds.get(self._part, 0.0) + now - self._since
        self._clock.move(self._part, part)
        self._part, self._since = part, now
