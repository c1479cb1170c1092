"""A soak: one session of local for minutes, whose calls go on while agents are stopped and killed.

After each fault has healed the session has to be as fast as before, and a call has to return at least every
twenty seconds.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sandboxkit import Operation, SandboxError, Session
from sandboxkit.providers.local import LocalProvider
from tests.chaos._census import Pace
from tests.chaos.calls import TAG, Tally, calling
from tests.chaos.targets import MAIN, left

ROOM = 8
"""Sandboxes at a time: what is broken must give its room back, or the session stands still."""
_LONGEST = 8.0
_BETWEEN = 3.0
_PAUSE = 20.0
"""The most seconds in which no call may return."""


@dataclass(slots=True)
class Soaked:
    """What a soak found."""

    tally: Tally = field(default_factory=Tally)
    usual: float = 0.0
    healed: dict[str, list[float]] = field(default_factory=dict)
    """For each kind of fault, how many seconds after each of them the session was as fast again."""
    slow: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return bool(self.tally.failed or self.slow or self.tally.pause > _PAUSE)


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to agents that still run: a number may have gone to somebody else by now."""
    for pid in pids:
        with suppress(OSError):  # the sandbox has ended meanwhile
            process = os.pidfd_open(pid)
            try:
                if b"agent" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                    signal.pidfd_send_signal(process, number)
            finally:
                os.close(process)


def _soak(session: Session, provider: LocalProvider, seconds: float, seed: int) -> Soaked:
    """Call for so many seconds, break something again and again, and see that all goes on."""
    chance, over = random.Random(f"soak {seed}"), threading.Event()
    pace = Pace(session)
    found = Soaked(usual=pace.usual)  # with nothing beside it
    end, name = time.monotonic() + seconds, "nothing"
    with calling(
        session,
        lambda session: session.sandbox(command=MAIN).start(),
        found.tally,
        lambda: not over.is_set(),
        seed=seed,
        workers=ROOM // 2,
    ):
        try:
            while time.monotonic() < end:
                over.wait(chance.uniform(0, _BETWEEN))
                try:
                    pace.mark()
                except SandboxError as error:
                    found.slow.append(f"long after {name}: {error!r}")
                    continue
                name = chance.choice(("kill", "stop"))
                ids = [info.id for info in session.list(TAG).result(60) if chance.random() < 0.7]
                pids = [provider.box(each)._agent_pid() or 0 for each in ids]
                pids = [each for each in pids if each]  # it is 0 while they start
                _send(pids, signal.SIGKILL if name == "kill" else signal.SIGSTOP)
                try:
                    over.wait(chance.uniform(0, _LONGEST))
                finally:
                    _send(pids, signal.SIGCONT)
                after, wrong = pace.back()
                found.healed.setdefault(name, []).append(after)
                found.slow += [f"{name}: {wrong}"] if wrong else []
        finally:
            over.set()
    return found


def run(seconds: float, seed: int, *, pool: int | None = None) -> Soaked:
    provider = LocalProvider()
    try:
        with Session(provider, tags=TAG, lifetime=600, max_concurrency=ROOM, pool=pool) as session:
            found = _soak(session, provider, seconds, seed)
    finally:
        Operation(provider.aclose()).result(60)
    with Session("local") as after:
        found.tally.left = left(after)
    return found
