"""kill -9 of an owner at random moments of a capture, a fork or a build: only what expires is left."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandboxkit import Session
from tests.crash.test_sigkill import PROGRAMS
from tests.docker_here import require_docker

SECONDS = 60.0
SPANS = {"local": 0.4, "docker": 2.5}
"""The kill comes at most so many seconds after the first call: the time that the longest of the three takes."""


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(3, marks=pytest.mark.timeout(900)),
        pytest.param(50, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
    ],
)
@pytest.mark.parametrize("provider", ["local", "docker"])
def test_a_killed_owner_leaves_only_what_expires_and_cleanup_removes_it(
    provider: str, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if provider == "docker":
        require_docker()
    state = tmp_path / "state"
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(state))
    run, seed = str(time.time_ns()), str(random.random())
    argv = [provider, f"crash:{run}", str(rounds), seed, str(SPANS[provider])]
    subprocess.run(
        [sys.executable, "-c", PROGRAMS["owners"], *argv], check=True, timeout=300 + 30 * rounds
    )

    def cleanup(what: str) -> str:
        argv = ["cleanup", "--provider", provider, what, "--tag", f"crash:{run}"]
        program = [sys.executable, "-m", "sandboxkit", *argv]
        return subprocess.check_output(program, text=True, timeout=120)

    # A container that was made and never started has no agent that could end it: it expires.
    cleanup("--orphans")
    with Session(provider) as session:
        deadline = time.monotonic() + SECONDS
        while left := session.list(f"crash:{run}").result(30):
            assert time.monotonic() < deadline, f"seed {seed}: {len(left)} sandboxes live on"
            time.sleep(0.05)
    # Not Snapshot.list: this process would keep the provider of this state folder for other tests.
    cleanup("--snapshots")
    assert cleanup("--snapshots") == "nothing to remove\n"
    if provider == "docker":
        # The labels of all images of snapshots, those without a name included.
        images = ["docker", "images", "--all", "--quiet", "--filter", "label=sandboxkit.snapshot"]
        ids = subprocess.check_output(images, text=True).split()
        inspect = ["docker", "inspect", "--format", "{{json .Config.Labels}}", *ids]
        # Another test may remove an image between the two, which fails `inspect` but not its output.
        assert (
            not ids or run not in subprocess.run(inspect, capture_output=True, text=True).stdout
        ), seed
    snapshots = state / "snapshots"
    assert not snapshots.exists() or os.listdir(snapshots) == [], seed
    assert {path.name for path in state.iterdir()} <= {"snapshots"}, seed
