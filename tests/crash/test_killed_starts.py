"""kill -9 of local clients at random moments of their starts: the next start leaves nothing."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from sandboxkit import Session
from tests.crash.test_sigkill import PROGRAMS

ROUNDS = 200
SECONDS = 60.0


def processes(mark: str) -> list[str]:
    """Command lines, by pid, of bubblewraps and agents of these clients."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                line = Path("/proc", entry, "cmdline").read_bytes()
            except OSError:
                continue
            if b"--workdir=/tmp/" + mark.encode() in line:
                found.append(f"{entry}: {line!r}")
    return found


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
            deadline = time.monotonic() + SECONDS
            while processes(mark) or groups(clients) or len(os.listdir(tmp_path / "state")) != 1:
                if time.monotonic() > deadline:
                    pytest.fail(
                        f"left with seed {seed}: {processes(mark)} {groups(clients)} "
                        f"{os.listdir(tmp_path / 'state')}"
                    )
                time.sleep(0.05)
        assert os.listdir(tmp_path / "state") == []
        assert mounts(tmp_path) <= before
    finally:
        if forks == "forks":
            for client in clients:
                with suppress(ProcessLookupError):  # it was killed before it forked
                    os.killpg(int(client), signal.SIGKILL)
