"""A paused sandbox: it dies with its owner and its lifetime, nothing of it runs, and no pool takes it."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxkit import Sandbox, SandboxPausedError, SandboxState, SandboxTerminatedError, Session
from sandboxkit._lifecycle import PauseClock
from sandboxkit.testing.conformance._base import token, until
from tests.docker_here import TEST_IMAGE, require_docker
from tests.pool.providers import line_of

_SECONDS = 60.0
_PROGRAMS = tomllib.loads(Path(__file__).with_name("pause.toml").read_text())


@pytest.fixture(params=["local", "docker"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "docker":
        require_docker()
        os.environ.setdefault("SANDBOXKIT_DOCKER_IMAGE", TEST_IMAGE)
    return str(request.param)


def test_it_ends_with_its_lifetime_and_with_its_owner(backend: str) -> None:
    mark = token()

    def count() -> int:
        return len(Sandbox.list({"pause": mark}, provider=backend).result(_SECONDS))

    owner = subprocess.Popen(
        [sys.executable, "-c", _PROGRAMS["owner"], backend, mark, "8"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert line_of(owner) == "paused"
        until(lambda: count() == 1, "the lifetime of a paused sandbox passes")
        owner.send_signal(signal.SIGKILL)
        until(lambda: count() == 0, "a paused sandbox ends with its owner")
    finally:
        owner.kill()
        owner.communicate()


def test_every_process_stands_still_and_another_session_resumes_it(backend: str) -> None:
    with Session(backend) as session, session.sandbox() as sandbox, Session(backend) as other:
        storm = sandbox.exec(["python3", "-c", _PROGRAMS["forks"]])
        next(iter(storm.stdout.lines()))
        sandbox.pause().result(_SECONDS)
        before: Any = sandbox.usage().result(_SECONDS)  # Any: all of it is known here
        time.sleep(1)
        after: Any = sandbox.usage().result(_SECONDS)
        assert after.processor_seconds == pytest.approx(before.processor_seconds, abs=0.02)
        assert after.processes <= before.processes, "one that was ending may be gone"
        reached = other.from_id(str(sandbox.id)).result(_SECONDS)
        with pytest.raises(SandboxPausedError):
            reached.exec(["true"]).result(_SECONDS)
        reached.resume().result(_SECONDS)
        states = "cat /proc/[0-9]*/stat | grep -c ') T '"
        stopped = reached.exec(["sh", "-c", states]).result(_SECONDS).stdout
        assert stopped == "1\n", "the process that had stopped before stays so, and no other"
        sandbox.pause().result(_SECONDS)
        snapshot = sandbox.snapshot()
        sandbox.resume().result(_SECONDS)
        snapshot.result(_SECONDS).delete().result(_SECONDS)
        assert reached.exec(["true"]).result(_SECONDS).returncode == 0
        storm.kill()
        assert storm.result(_SECONDS).returncode == 137
        assert sandbox.status().result(_SECONDS).id == sandbox.id


def test_a_paused_sandbox_counts_and_is_not_used_again() -> None:
    with Session("local", profile="strict", reuse="reset", pool=1, max_concurrency=1) as session:
        with session.sandbox() as first:
            first.exec(["true"]).result(_SECONDS)
            first.pause().result(_SECONDS)
            second = session.sandbox()
            waits = second.exec(["echo", "next"])
            time.sleep(1)
            assert not waits.done()
            assert first.status().result(_SECONDS).state is SandboxState.PAUSED
        assert waits.result(_SECONDS).stdout == "next\n"
        assert second.id != first.id
        assert session.pool_stats().reset == 0
        with pytest.raises(SandboxTerminatedError):
            first.resume().result(_SECONDS)


@pytest.mark.anyio
async def test_a_timer_that_begins_during_a_pause_keeps_its_seconds() -> None:
    clock = PauseClock()
    clock.pause()
    with anyio.move_on_after(0.2) as timer, clock.stops(timer):
        await anyio.sleep(0.3)
        clock.resume()
        await anyio.sleep(5)
    assert timer.cancelled_caught
