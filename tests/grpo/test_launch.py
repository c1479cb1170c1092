"""A rank whose launcher is killed ends as after SIGTERM."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from tests.grpo.stand_ins import free_port

RANK = """
import os, signal, sys, time
from sandboxkit.integrations.grpo import parent
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("told", flush=True)))
print(os.getpid(), flush=True)
"""
JOINED = """
from sandboxkit.integrations.grpo.ranks import joined
with joined("cpu", 60):
    print("joined", flush=True)
    signal.pause()
"""
LATE = """
print("begun", flush=True)
while os.getppid() == parent._PARENT:
    time.sleep(0.01)
parent.end_with_parent()
signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells it")
@pytest.mark.parametrize("then", [JOINED, LATE], ids=["in a run", "before"])
def test_a_rank_ends_when_its_launcher_is_killed(then: str) -> None:
    launched = {"TORCHELASTIC_RUN_ID": "any", "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    launcher = subprocess.Popen(
        ["sh", "-c", '"$@" & wait', "launcher", sys.executable, "-c", RANK + then],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **launched, **place},
    )
    assert launcher.stdout is not None
    rank = os.pidfd_open(int(launcher.stdout.readline()))
    try:
        assert launcher.stdout.readline() in ("joined\n", "begun\n")
        launcher.kill()
        assert launcher.communicate(timeout=150)[0] == "told\n"
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(rank, signal.SIGKILL)
        os.close(rank)
