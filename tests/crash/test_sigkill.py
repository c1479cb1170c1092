"""kill -9 of a client: its sandboxes end before a grace, whether or not a forked child of it lives."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import Operation, Session, _cleanup, _registry
from tests.docker_here import require_docker

PROGRAMS = tomllib.loads(Path(__file__).with_name("programs.toml").read_text())
COUNT = 20
SECONDS = 20.0
"""Less than the 30 s in which the owner of a container may come back."""


def test_a_killed_client_leaves_nothing(provider: str) -> None:
    run = f"{provider}-{time.time_ns()}"
    client = subprocess.Popen(
        [sys.executable, "-c", PROGRAMS["sigkilled"], provider, run, str(COUNT)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    with client.stdout, Session(provider=provider) as session:
        assert client.stdout.readline() == "ready\n"
        assert len(session.list(f"crash:{run}").result(60)) == COUNT
        client.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        client.wait(60)
        while left := session.list(f"crash:{run}").result(60):
            assert time.monotonic() - killed < SECONDS, f"{len(left)} sandboxes live on"
        backend = _registry.load(provider)
        Operation(_cleanup.sweep(backend, expired=True, orphans=True)).result(60)
        assert session.list(f"crash:{run}").result(60) == []
        Operation(backend.aclose()).result(60)


@pytest.fixture(params=["local", "docker"])
def provider(request: pytest.FixtureRequest) -> str:
    if request.param == "docker":
        require_docker()
    return str(request.param)


@pytest.fixture
def session(provider: str) -> Iterator[Session]:
    with Session(provider=provider) as session:
        yield session


def start(provider: str, run: str, way: str, then: str) -> "tuple[subprocess.Popen[str], int]":
    """A client with two sandboxes and a forked child; the child's pid."""
    client = subprocess.Popen(
        [sys.executable, "-c", PROGRAMS["forking"], provider, run, way, then],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    child, ready = sorted(client.stdout.readline().strip() for _ in range(2))
    assert ready == "ready"
    return client, int(child)


@pytest.mark.parametrize("way", ["fork", "multiprocessing"])
def test_a_killed_parents_sandboxes_end_though_its_child_lives(
    provider: str, session: Session, way: str
) -> None:
    run = f"{way}-{time.time_ns()}"
    client, child = start(provider, run, way, "sleep")
    try:
        with client:
            assert len(session.list(f"forks:{run}").result(60)) == 2
            client.send_signal(signal.SIGKILL)
            killed = time.monotonic()
            client.wait(60)
            os.kill(child, 0)
            while left := session.list(f"forks:{run}").result(60):
                assert time.monotonic() - killed < SECONDS, f"{len(left)} sandboxes live on"
            os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("way", ["fork", "multiprocessing"])
def test_the_exit_of_a_child_does_not_end_its_parents_sandboxes(
    provider: str, session: Session, way: str
) -> None:
    run = f"{way}-{time.time_ns()}"
    client, _ = start(provider, run, way, "exit")
    with client:
        assert len(session.list(f"forks:{run}").result(60)) == 2
        client.send_signal(signal.SIGKILL)
