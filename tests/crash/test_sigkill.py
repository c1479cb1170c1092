"""kill -9 of a client, also at random moments of its starts: its sandboxes end before a grace, and nothing is left."""

import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sandboxkit import Operation, Session, _registry
from sandboxkit._life import _cleanup
from tests import process_list
from tests.docker_here import require_docker
from tests.pool.providers import line_of

PROGRAMS = tomllib.loads(Path(__file__).with_name("programs.toml").read_text())
SECONDS = 20.0
"""Less than the 30 s in which the owner of a container may come back."""


@pytest.fixture(params=["local", "docker"])
def provider(request: pytest.FixtureRequest) -> str:
    if request.param == "docker":
        require_docker()
    return str(request.param)


@pytest.fixture
def session(provider: str) -> Iterator[Session]:
    with Session(provider=provider) as session:
        yield session


def started(program: str, provider: str, run: str, *args: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-c", PROGRAMS[program], provider, run, *args]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def ends_once_killed(client: "subprocess.Popen[str]", session: Session, run: str) -> None:
    client.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    client.wait(60)
    while left := session.list(f"crash:{run}").result(60):
        assert time.monotonic() - killed < SECONDS, f"{len(left)} sandboxes live on"


@pytest.mark.parametrize(("program", "count"), [("sigkilled", 20), ("pool", 5)])
def test_a_killed_client_leaves_nothing(
    provider: str, session: Session, program: str, count: int
) -> None:
    run = f"{provider}-{time.time_ns()}"
    with started(program, provider, run, str(count)) as client:
        assert line_of(client) == "ready"
        assert len(session.list(f"crash:{run}").result(60)) == count
        ends_once_killed(client, session, run)
    backend = _registry.load(provider)
    Operation(_cleanup.sweep(backend, expired=True, orphans=True)).result(60)
    assert session.list(f"crash:{run}").result(60) == []
    Operation(backend.aclose()).result(60)


@pytest.mark.parametrize("then", ["sleep", "exit"])
@pytest.mark.parametrize("way", ["fork", "multiprocessing"])
def test_a_childs_life_keeps_no_sandbox_and_its_exit_ends_none(
    provider: str, session: Session, way: str, then: str
) -> None:
    run = f"{way}-{time.time_ns()}"
    with started("forking", provider, run, way, then) as client:
        child, ready = sorted(line_of(client) for _ in range(2))
        assert ready == "ready"
        assert len(session.list(f"crash:{run}").result(60)) == 2
        if then == "exit":
            client.send_signal(signal.SIGKILL)
            return
        try:
            ends_once_killed(client, session, run)
            os.kill(int(child), 0)
        finally:
            os.kill(int(child), signal.SIGKILL)


ROUNDS = 200
GONE_SECONDS = 60.0


def processes(mark: str) -> list[str]:
    """Command lines, by pid, of bubblewraps and agents of these clients."""
    lines = ((each.pid, each.args) for each in process_list.processes())
    return [f"{pid}: {args}" for pid, args in lines if f"--workdir=/tmp/{mark}" in args]


def groups(makers: list[str]) -> list[str]:
    """Control groups that these clients made."""
    return [
        folder
        for folder, _, _ in os.walk("/sys/fs/cgroup")
        if os.path.basename(folder).removeprefix("detached-").split("-")[0] in makers
    ]


def mounts(own: Path) -> set[str]:
    """Return the host's mounts, except those of other programs' containers and of other tests' folders."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    others = ("docker", "sbk-", "pytest-of-")
    return {line for line in lines if str(own) in line or not any(each in line for each in others)}


@pytest.mark.timeout(900)  # on a busy machine: these are many clients
@pytest.mark.parametrize("forks", ["alone", "forks"])
def test_clients_killed_while_they_start_leave_nothing(
    forks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    mark, seed = f"killed-{time.time_ns()}", str(random.random())
    before = mounts(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS["clients"], mark, str(ROUNDS), forks, seed],
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, seed
    clients = done.stdout.split()
    try:
        with Session(provider="local") as session:
            session.sandbox().start().result(60)
            deadline = time.monotonic() + GONE_SECONDS
            while processes(mark) or groups(clients) or len(os.listdir(tmp_path / "state")) != 1:
                left = [processes(mark), groups(clients), os.listdir(tmp_path / "state")]
                assert time.monotonic() < deadline, f"left with seed {seed}: {left}"
                time.sleep(0.05)
        assert os.listdir(tmp_path / "state") == []
        assert mounts(tmp_path) <= before
    finally:
        if forks == "forks":
            for client in clients:
                with suppress(ProcessLookupError):  # it was killed before it forked
                    os.killpg(int(client), signal.SIGKILL)
