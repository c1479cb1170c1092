"""kill -9 of a client with twenty sandboxes on a provider: all gone before a grace, nothing is left."""

import signal
import subprocess
import sys
import time

import pytest

from sandboxkit import Operation, Session, _cleanup, _registry
from tests.docker_here import require_docker

COUNT = 20
SECONDS = 20.0
"""Less than the 30 s in which the owner of a container may come back."""

CLIENT = f"""
import sys, threading
from sandboxkit import Session, wait

with Session(provider=sys.argv[1], tags=("crash:" + sys.argv[2],)) as session:
    sandboxes = [session.sandbox() for _ in range({COUNT})]
    processes = [sandbox.exec(["sleep", "1000"]) for sandbox in sandboxes]
    for sandbox in sandboxes:
        sandbox.start().result()
    print("ready", flush=True)
    threading.Event().wait()
"""


@pytest.mark.parametrize("provider", ["local", "docker"])
def test_a_killed_client_leaves_nothing(provider: str) -> None:
    if provider == "docker":
        require_docker()
    run = f"{provider}-{time.time_ns()}"
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, provider, run], stdout=subprocess.PIPE, text=True
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
