"""Where the time goes: each second of a rollout is in one part, and so is each that a step waits."""

import math
import threading
import time
from collections.abc import MutableMapping, Sequence
from typing import Literal, Self

__all__ = ["PARTS", "Clock", "Part", "Timer", "percentiles"]

Part = Literal["sampling", "queue", "start", "tools", "grading"]
PARTS: tuple[Part, ...] = ("sampling", "queue", "start", "tools", "grading")
"""The engine writes; waiting for one of `grading.max_concurrency`; then for the rollout's own sandbox
to start; its tool calls, reading what they left and the sandbox's end; the grader, with sandboxes of
its own."""


def percentiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """`name`_p50 and `name`_p99; NaN of nothing."""
    ordered = sorted(seconds)
    return {
        f"{name}_p{percent}": ordered[len(ordered) * percent // 100] if ordered else math.nan
        for percent in (50, 99)
    }


class Clock:
    """How many rollouts are in each part. Usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: dict[Part, int] = dict.fromkeys(PARTS, 0)
        self._spent: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
        self._since = time.monotonic()

    def spent(self) -> dict[Part, float]:
        """Seconds since it was made in which some rollout was under way, by part.

        A moment in which any of them samples counts as sampling. Any other is shared out by how
        many are in each part: that of `queue` is what more sandboxes at a time could save.
        """
        with self._lock:
            self._advance()
            return dict(self._spent)

    def move(self, before: Part | None, after: Part | None) -> None:
        """One rollout is in another part; None is before its beginning and after its end."""
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
    """One rollout's time, added to `seconds` part by part until its context ends."""

    def __init__(self, clock: Clock, seconds: MutableMapping[Part, float]) -> None:
        self._clock, self._seconds = clock, seconds
        self._part: Part | None = None
        self._since = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._to(None)

    def enter(self, part: Part) -> None:
        """It is in this part from now on."""
        self._to(part)

    def _to(self, part: Part | None) -> None:
        now = time.monotonic()
        if self._part is not None:
            self._seconds[self._part] = self._seconds.get(self._part, 0.0) + now - self._since
        self._clock.move(self._part, part)
        self._part, self._since = part, now
