"""A soak: one session for minutes, whose calls go on under fault after fault.

After each fault has healed the session has to be as fast as before; when nothing returns for twenty
seconds, a watchdog says where everything stands.
"""

import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandboxkit import SandboxError, Session
from tests.chaos._pace import Pace
from tests.chaos._watchdog import Watchdog
from tests.chaos.calls import SECONDS, TAG, Tally, calling

__all__ = ["Break", "Soaked", "soak"]

Break = Callable[[list[str]], Callable[[], None]]
"""Breaks something, of these sandboxes or of the backend, and returns what heals it."""

_LONGEST = 8.0
_BETWEEN = 3.0


@dataclass(slots=True)
class Soaked:
    """What a soak found."""

    tally: Tally = field(default_factory=Tally)
    usual: float = 0.0
    """Seconds for a few runs before anything else."""
    healed: dict[str, list[float]] = field(default_factory=dict)
    """For each kind of fault, how many seconds after each of them the session was as fast again."""
    slow: list[str] = field(default_factory=list)
    """Faults after which it was not."""
    stalls: list[str] = field(default_factory=list)
    """What the watchdog wrote."""
    longest_pause: float = 0.0
    """The most seconds in which no call returned."""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether something did not go on as it has to."""
        return bool(self.tally.failed or self.slow or self.stalls)

    def table(self) -> str:
        """The figures, and everything that was wrong."""
        rows = [("took", f"{self.seconds:.0f} s"), ("usual pace", f"{self.usual:.2f} s")]
        rows += [
            (f"back after {name}", f"{len(times)} times, at most {max(times):.1f} s")
            for name, times in sorted(self.healed.items())
        ]
        rows += [
            ("not back in time", str(len(self.slow))),
            ("longest pause", f"{self.longest_pause:.1f} s"),
            ("stalls", str(len(self.stalls))),
        ]
        lines = [f"{name:25} {value}" for name, value in rows]
        return "\n".join([*lines, self.tally.table(), *self.slow, *self.stalls])


def soak(
    session: Session,
    breaks: Mapping[str, Break],
    *,
    seconds: float,
    seed: int,
    workers: int = 6,
    deadline: float = SECONDS,
    agent: Callable[[str], int | None] = lambda sandbox_id: None,
) -> Soaked:
    """Call for so many seconds, break something again and again, and see that all goes on.

    `agent` is a sandbox's first process on this machine, if it has one here, for the watchdog.
    """
    found, chance, over = Soaked(), random.Random(f"soak {seed}"), threading.Event()
    ids: list[str] = []

    def agents() -> Iterator[int]:
        for each in list(ids):
            if (pid := agent(each)) is not None:
                yield pid

    pace = Pace(session)
    found.usual = pace.usual  # with nothing beside it
    began = time.monotonic()
    name = "nothing"
    watchdog = Watchdog(found.stalls.append, pids=agents)
    # The watchdog ends before the folder is removed, which may take longer than a call.
    with (
        tempfile.TemporaryDirectory() as folder,
        watchdog,
        calling(
            session,
            lambda session: session.sandbox(command=["sh", "-c", "sleep 0.5; exit 3"]).start(),
            found.tally,
            lambda: not over.is_set(),
            seed=seed,
            folder=Path(folder),
            workers=workers,
            deadline=deadline,
            returned=watchdog.alive,
        ),
    ):
        try:
            while time.monotonic() < began + seconds:
                over.wait(chance.uniform(0, _BETWEEN))
                try:
                    pace.mark()
                except SandboxError as error:
                    found.slow.append(
                        f"long after {name}, {time.monotonic() - began:.0f} s: {error!r}"
                    )
                    continue
                name = chance.choice(sorted(breaks))
                ids[:] = [info.id for info in session.list(TAG).result(60)]
                heal = breaks[name]([each for each in ids if chance.random() < 0.7])
                try:
                    over.wait(chance.uniform(0, _LONGEST))
                finally:
                    heal()
                after, wrong = pace.back()
                found.healed.setdefault(name, []).append(after)
                if wrong:
                    found.slow.append(f"{name}, {time.monotonic() - began:.0f} s: {wrong}")
        finally:
            over.set()
    found.seconds = time.monotonic() - began
    found.longest_pause = watchdog.longest
    return found
