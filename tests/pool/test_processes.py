"""Pools and processes: others on this machine that want room, forks, and sudden ends."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from sandboxkit import (
    ConfigurationError,
    Operation,
    Session,
    _cleanup,
    _machine_semaphore,
    _registry,
)
from tests.docker_here import require_docker
from tests.pool.providers import DEADLINE, Counting, settled, until

COUNT = 4
SECONDS = 20.0
"""Less than the 30 s in which the owner of a container may come back."""

PROGRAMS = tomllib.loads(Path(__file__).with_name("processes.toml").read_text())


class Here(Counting):
    """Has sandboxes on this machine."""

    on_this_machine: ClassVar[bool] = True


@pytest.fixture
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    yield
    _machine_semaphore._forget()  # the next test has another folder


@pytest.mark.usefixtures("own_places")
def test_idle_sandboxes_give_their_room_to_other_processes_and_sessions() -> None:
    provider = Here()
    with Session(provider, pool=2, max_live=2) as session:
        until(session, lambda stats: stats.ready == 2)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAMS["hungry"]], capture_output=True, text=True, timeout=120
        )
        assert (done.stdout, done.stderr) == ("1\n2\n", "")
        until(session, lambda stats: stats.ready == 2)
        with Session(Here(), max_live=2) as other:
            assert other.run(["true"]).result(DEADLINE).returncode == 0
        assert session.pool_stats().thrown_away.keys() == {"room for another session"}
        settled(session, provider)


def test_a_forked_child_has_no_pool() -> None:
    provider = Counting()
    with Session(provider, pool=1) as session:
        until(session, lambda stats: stats.ready == 1)
        if (pid := os.fork()) == 0:
            try:
                session.close().result(DEADLINE)
                session.run(["true"])
            except ConfigurationError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert session.run(["true"]).result(DEADLINE).returncode == 0
        assert session.pool_stats().hits == 1


@pytest.mark.parametrize("provider", ["local", "docker"])
def test_a_killed_client_leaves_nothing_of_its_pool(provider: str) -> None:
    if provider == "docker":
        require_docker()
    run = f"{provider}-{time.time_ns()}"
    client = subprocess.Popen(
        [sys.executable, "-c", PROGRAMS["killed"], provider, run, str(COUNT)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    with client.stdout, Session(provider=provider) as session:
        assert client.stdout.readline() == "ready\n"
        assert len(session.list(f"pool:{run}").result(30)) == COUNT + 1
        client.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        client.wait(60)
        while left := session.list(f"pool:{run}").result(30):
            assert time.monotonic() - killed < SECONDS, f"{len(left)} sandboxes live on"
        backend = _registry.load(provider)
        Operation(_cleanup.sweep(backend, expired=True, orphans=True)).result(60)
        Operation(backend.aclose()).result(60)
