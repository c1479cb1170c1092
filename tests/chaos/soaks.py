"""Soaks of the local and the docker provider, and what is broken in them."""

import functools
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from sandboxkit import Operation, Session
from sandboxkit.providers._agent.provider import AgentProvider
from sandboxkit.providers.docker import DockerProvider, _direct
from sandboxkit.providers.local import LocalProvider
from tests.chaos.calls import SECONDS, TAG
from tests.chaos.distant import no_way
from tests.chaos.soak import Break, Soaked, soak
from tests.chaos.targets import left
from tests.faults import FaultProxy, Reset

ROOM = 8
"""Sandboxes at a time: what is broken must give its room back, or the session stands still."""


def nothing() -> None:
    """Heals what cannot be healed."""


@dataclass
class Subject:
    """A provider, what breaks it, and how long a call may take while it is broken."""

    provider: AgentProvider[Any]  # of whichever kind of instance
    breaks: dict[str, Break]
    deadline: float = SECONDS


def first_process(provider: AgentProvider[Any], sandbox_id: str) -> int | None:
    """The process of a sandbox's agent, if it is known; 0 while it starts."""
    return provider._agent_pid(provider._known(sandbox_id))


def signalled(
    provider: AgentProvider[Any], number: signal.Signals, healing: signal.Signals | None = None
) -> Break:
    """A signal for the agents, and another one that heals them."""

    def send(pids: Iterable[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(OSError):  # the sandbox has ended meanwhile
                process = os.pidfd_open(pid)
                try:  # a number may have gone to somebody else by now
                    if b"agent" in Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]:
                        signal.pidfd_send_signal(process, number)
                finally:
                    os.close(process)

    def breaks(ids: list[str]) -> Callable[[], None]:
        pids = [
            pid for each in ids if (pid := provider._agent_pid(provider._known(each)))
        ]  # 0: it starts
        send(pids, number)
        if healing is None:
            return nothing
        return functools.partial(send, pids, healing)

    return breaks


@contextmanager
def local() -> Iterator[Subject]:
    """The agents are stopped, or killed."""
    provider = LocalProvider()
    yield Subject(
        provider,
        {
            "kill": signalled(provider, signal.SIGKILL),
            "stop": signalled(provider, signal.SIGSTOP, signal.SIGCONT),
        },
    )


@contextmanager
def docker() -> Iterator[Subject]:
    """The containers are paused or their agents killed; the daemon's connections break or stall."""
    upstream = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")

    def pause(ids: list[str]) -> Callable[[], None]:
        def each(verb: str) -> None:
            if ids:  # some may have ended, which is no failure
                subprocess.run(["docker", verb, *ids], capture_output=True)

        each("pause")
        return lambda: each("unpause")

    with (
        FaultProxy(upstream, listen="unix") as proxy,
        mock.patch.object(_direct, "connect", no_way),
    ):
        provider = DockerProvider(base_url=proxy.url, timeout=10)

        def cut(ids: list[str]) -> Callable[[], None]:
            proxy.plan = lambda request: Reset()
            proxy.reset()
            return proxy.heal

        def stall(ids: list[str]) -> Callable[[], None]:
            proxy.stall()
            return proxy.heal

        breaks = {"kill": signalled(provider, signal.SIGKILL)}
        yield Subject(
            provider, {**breaks, "pause": pause, "cut": cut, "stall": stall}, deadline=25.0
        )


SUBJECTS = {"local": local, "docker": docker}


def run(name: str, seconds: float, seed: int, *, pool: int | None = None) -> Soaked:
    """Soak one provider for so many seconds."""
    with SUBJECTS[name]() as subject:
        provider = subject.provider
        try:
            with Session(
                provider, tags=TAG, lifetime=600, max_concurrency=ROOM, pool=pool
            ) as session:
                found = soak(
                    session,
                    subject.breaks,
                    seconds=seconds,
                    seed=seed,
                    workers=ROOM // 2,
                    deadline=subject.deadline,
                    agent=lambda each: first_process(provider, each),
                )
        finally:
            Operation(provider.aclose()).result(60)
    with Session(name) as after:
        found.tally.left = left(after)
    return found
