"""Timing of rollouts: each second of a rollout, and of a step, is attributed to one part."""

import math
import threading
import time
from collections.abc import MutableMapping, Sequence
from typing import Literal, Self

__all__ = ["PARTS", "Part", "StageTimes", "Timer", "percentiles"]

Part = Literal["sampling", "queue", "start", "tools", "grading"]
PARTS: tuple[Part, ...] = ("sampling", "queue", "start", "tools", "grading")
"""`sampling`: the engine generates. `queue`: waiting for one of `grading.max_concurrency` slots.
`start`: the rollout's sandbox starts. `tools`: tool calls, reading their results, and stopping the
sandbox. `grading`: the grader, including its own sandboxes."""


def percentiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Return {`name`_p50, `name`_p99}; NaN if `seconds` is empty."""
    ordered = sorted(seconds)
    return {
        f"{name}_p{percent}": ordered[len(ordered) * percent // 100] if ordered else math.nan
        for percent in (50, 99)
    }


class StageTimes:
    """Counts the rollouts in each part, and the time spent there. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: dict[Part, int] = dict.fromkeys(PARTS, 0)
        self._spent: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
        self._since = time.monotonic()

    def spent(self) -> dict[Part, float]:
        """Return the seconds per part in which some rollout was in progress, since the clock was made.

        A moment in which any rollout samples counts as sampling. Any other moment is divided in
        proportion to the number of rollouts in each part; `queue` is what more sandboxes could save.
        """
        with self._lock:
            self._advance()
            return dict(self._spent)

    def move(self, before: Part | None, after: Part | None) -> None:
        """Move one rollout to another part; None means before its start or after its end."""
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
    """Adds one rollout's time to `seconds`, by part, until its context ends."""

    def __init__(self, clock: StageTimes, seconds: MutableMapping[Part, float]) -> None:
        self._clock, self._seconds = clock, seconds
        self._part: Part | None = None
        self._since = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._to(None)

    def enter(self, part: Part) -> None:
        """Attribute the time from now on to `part`."""
        self._to(part)

    def _to(self, part: Part | None) -> None:
        now = time.monotonic()
        if self._part is not None:
            self._seconds[self._part] = self._seconds.get(self._part, 0.0) + now - self._since
        self._clock.move(self._part, part)
        self._part, self._since = part, now
