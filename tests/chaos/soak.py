"""A soak: one session for minutes, whose calls go on under fault after fault.

After each fault has healed the session has to be as fast as before, and a call has to return at least every
twenty seconds.
"""

import functools
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pprint import pformat
from typing import Any
from unittest import mock

from sandboxkit import Operation, SandboxError, Session
from sandboxkit.providers._agent.provider import AgentProvider
from sandboxkit.providers.docker import DockerProvider, _direct
from sandboxkit.providers.local import LocalProvider
from tests.chaos._census import Pace
from tests.chaos.calls import SECONDS, TAG, Tally, calling
from tests.chaos.distant import no_way
from tests.chaos.targets import left
from tests.faults import FaultProxy, Reset

Break = Callable[[list[str]], Callable[[], object]]
"""Breaks something, of these sandboxes or of the backend, and returns what heals it."""
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
    """Seconds for a few runs before anything else."""
    healed: dict[str, list[float]] = field(default_factory=dict)
    """For each kind of fault, how many seconds after each of them the session was as fast again."""
    slow: list[str] = field(default_factory=list)
    """Faults after which it was not."""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether something did not go on as it has to."""
        return bool(self.tally.failed or self.slow or self.tally.pause > _PAUSE)

    def __str__(self) -> str:
        return pformat(asdict(self), width=110)


@dataclass
class Subject:
    """A provider, what breaks it, and how long a call may take while it is broken."""

    provider: AgentProvider[Any]  # of whichever kind of instance
    breaks: dict[str, Break]
    deadline: float = SECONDS

    def agents(self, ids: Iterable[str]) -> Iterator[int]:
        """The processes of these sandboxes' agents on this machine, which are 0 while they start."""
        for each in list(ids):
            if pid := self.provider._agent_pid(self.provider._known(each)):
                yield pid

    def signalled(self, number: signal.Signals, healing: signal.Signals | None = None) -> Break:
        """A signal for the agents, and another one that heals them."""

        def send(pids: list[int], number: signal.Signals) -> None:
            for pid in pids:
                with suppress(OSError):  # the sandbox has ended meanwhile
                    process = os.pidfd_open(pid)
                    try:  # a number may have gone to somebody else by now
                        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                        if b"agent" in argv[0]:
                            signal.pidfd_send_signal(process, number)
                    finally:
                        os.close(process)

        def breaks(ids: list[str]) -> Callable[[], object]:
            pids = list(self.agents(ids))
            send(pids, number)
            return functools.partial(send, pids if healing else [], healing or number)

        return breaks


@contextmanager
def local() -> Iterator[Subject]:
    """The agents are stopped, or killed."""
    subject = Subject(LocalProvider(), {})
    subject.breaks["kill"] = subject.signalled(signal.SIGKILL)
    subject.breaks["stop"] = subject.signalled(signal.SIGSTOP, signal.SIGCONT)
    yield subject


@contextmanager
def docker() -> Iterator[Subject]:
    """The containers are paused or their agents killed; the daemon's connections break or stall."""
    upstream = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")

    def pause(ids: list[str]) -> Callable[[], object]:
        def every(verb: str) -> None:
            if ids:  # some may have ended, which is no failure
                subprocess.run(["docker", verb, *ids], capture_output=True)

        every("pause")
        return lambda: every("unpause")

    with (
        FaultProxy(upstream, listen="unix") as proxy,
        mock.patch.object(_direct, "connect", no_way),
    ):

        def cut(ids: list[str]) -> Callable[[], object]:
            proxy.plan = lambda request: Reset()
            proxy.reset()
            return proxy.heal

        def stall(ids: list[str]) -> Callable[[], object]:
            proxy.stall()
            return proxy.heal

        breaks: dict[str, Break] = {"pause": pause, "cut": cut, "stall": stall}
        subject = Subject(DockerProvider(base_url=proxy.url, timeout=10), breaks, deadline=25.0)
        subject.breaks["kill"] = subject.signalled(signal.SIGKILL)
        yield subject


def soak(session: Session, subject: Subject, *, seconds: float, seed: int) -> Soaked:
    """Call for so many seconds, break something again and again, and see that all goes on."""
    chance, over = random.Random(f"soak {seed}"), threading.Event()
    pace = Pace(session)
    found = Soaked(usual=pace.usual)  # with nothing beside it
    began, name = time.monotonic(), "nothing"
    with calling(
        session,
        lambda session: session.sandbox(command=["sh", "-c", "sleep 0.5; exit 3"]).start(),
        found.tally,
        lambda: not over.is_set(),
        seed=seed,
        workers=ROOM // 2,
        deadline=subject.deadline,
    ):
        try:
            while time.monotonic() < began + seconds:
                over.wait(chance.uniform(0, _BETWEEN))
                at = f"{time.monotonic() - began:.0f} s"
                try:
                    pace.mark()
                except SandboxError as error:
                    found.slow.append(f"long after {name}, {at}: {error!r}")
                    continue
                name = chance.choice(sorted(subject.breaks))
                ids = [info.id for info in session.list(TAG).result(60)]
                heal = subject.breaks[name]([each for each in ids if chance.random() < 0.7])
                try:
                    over.wait(chance.uniform(0, _LONGEST))
                finally:
                    heal()
                after, wrong = pace.back()
                found.healed.setdefault(name, []).append(after)
                found.slow += [f"{name}, {at}: {wrong}"] if wrong else []
        finally:
            over.set()
    found.seconds = time.monotonic() - began
    return found


def run(name: str, seconds: float, seed: int, *, pool: int | None = None) -> Soaked:
    """Soak one provider for so many seconds."""
    with {"local": local, "docker": docker}[name]() as subject:
        try:
            with Session(
                subject.provider, tags=TAG, lifetime=600, max_concurrency=ROOM, pool=pool
            ) as session:
                found = soak(session, subject, seconds=seconds, seed=seed)
        finally:
            Operation(subject.provider.aclose()).result(60)
    with Session(name) as after:
        found.tally.left = left(after)
    return found
