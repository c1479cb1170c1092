"""A forked child of a client neither keeps its parent's sandbox alive nor ends it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from sandboxkit import Session
from tests.docker_here import require_docker

SECONDS = 20.0
"""Less than the 30 s in which the owner of a container may come back."""

CLIENT = """
import gc, multiprocessing, os, sys, threading, time
from sandboxkit import Session

provider, run, way, then = sys.argv[1:]

def child():
    os.write(1, b"%d\\n" % os.getpid())
    if then == "sleep":
        time.sleep(600)
    gc.collect()

# With a sandbox that has run something, and one that was only started.
with Session(provider=provider, tags=("forks:" + run,)) as session:
    sandboxes = [session.sandbox() for _ in range(2)]
    process = sandboxes[0].exec(["sleep", "1000"])
    for sandbox in sandboxes:
        sandbox.start().result()
    if way == "fork":
        if os.fork() == 0:
            child()
            del sandboxes, sandbox, process
            sys.exit()
    else:
        other = multiprocessing.get_context("fork").Process(target=child)
        other.start()
    if then == "exit":
        if way == "fork":
            os.wait()
        else:
            other.join()
        for sandbox in sandboxes:
            assert sandbox.exec(["echo", "here"]).result(60).stdout == "here\\n"
    os.write(1, b"ready\\n")
    threading.Event().wait()
"""


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
        [sys.executable, "-c", CLIENT, provider, run, way, then], stdout=subprocess.PIPE, text=True
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
