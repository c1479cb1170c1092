"""The fork that is made before there is a job: used once, replaced where it is gone, dropped."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control_groups import processes_of
from tests.reset.jobs import Target, wait


@pytest.fixture
def target() -> Iterator[Target]:
    made = Target("local", "python", reuse="reset")
    yield made
    made.close()


def forked(target: Target) -> int:
    """The fork that waits for a job, once it is there."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = processes_of(target.sandbox().id)  # a bubblewrap or two, the agent, the interpreter
        names = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found[-2:]]
        if len({*names}) == 1 and b"python" in names[0]:
            return found[-1]
        time.sleep(0.01)
    raise AssertionError("no fork was made ahead")


def test_each_job_gets_a_fork_of_its_own(target: Target) -> None:
    seen = set()
    for _ in range(3):
        ahead = forked(target)
        assert target.run(target.sandbox(), "print(1)").stdout == b"1\n"
        assert ahead not in processes_of(target.sandbox().id)
        seen.add(ahead)
        assert target.reset() == "clean"
    assert len(seen) == 3
    assert target.made == 1


def test_a_fork_that_was_killed_is_replaced(target: Target) -> None:
    ahead = forked(target)
    os.kill(ahead, signal.SIGKILL)
    job = target.run(target.sandbox(), "print(1)")
    if job.status is None:  # it was given to the dying one, and says that it was not started
        assert b"cannot" in job.stderr, job.stderr
        assert target.reset() == "clean"
    for _ in range(2):
        job = target.run(target.sandbox(), "print(1)")
        assert (job.status, job.stdout) == (0, b"1\n")
        assert target.reset() == "clean"


def test_an_unused_fork_is_dropped(target: Target) -> None:
    ahead = forked(target)
    used = wait(target.sandbox().usage())
    assert used is not None
    assert used.processes == 3
    assert target.reset() == "clean"
    assert forked(target) != ahead
    target.mode = "exec"
    assert target.run(target.sandbox(), "print(2)").stdout == b"2\n"
    assert target.reset() == "clean"
    target.mode = "python"
    assert target.run(target.sandbox(), "print(3)").stdout == b"3\n"
