"""kill -9 of an owner at random moments of a capture, a fork or a build: only what expires is left."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandboxkit import Session
from tests.docker_here import require_docker

SECONDS = 60.0
SPANS = {"local": 0.4, "docker": 2.5}
"""The kill comes at most so many seconds after the first call: the time that the longest of the three takes."""

# One process that has imported everything forks the owners: their calls are killed, not an import.
OWNERS = """
import os, random, signal, sys, time
from sandboxkit import Image, Session

provider, tag, rounds, seed, span = sys.argv[1:]
rng = random.Random(seed)

def own(number, say):
    with Session(provider, tags=(tag,)) as session:
        base = session.sandbox()
        base.exec(["sh", "-c", "for n in $(seq 200); do echo $n > $n; done"], check=True).result(60)
        os.write(say, b".")
        while True:
            if number % 3 == 0:
                base.snapshot(ttl=3600).result(60)
            elif number % 3 == 1:
                for fork in base.fork(2).result(60):
                    fork.stop().result(60)
            else:
                image = Image().run(f"echo {time.time_ns()} > made")
                image.build(provider, tags=(tag,), ttl=3600).result(60)

for number in range(int(rounds)):
    ready, say = os.pipe()
    owner = os.fork()
    if owner == 0:
        own(number, say)
    os.close(say)
    assert os.read(ready, 1) == b".", number
    time.sleep(rng.uniform(0, float(span)))
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    os.close(ready)
"""


def _image_labels() -> str:
    """Return the labels of all images of snapshots, those without a name included."""
    images = ["docker", "images", "--all", "--quiet", "--filter", "label=sandboxkit.snapshot"]
    ids = subprocess.run(images, capture_output=True, text=True, check=True).stdout.split()
    inspect = ["docker", "inspect", "--format", "{{json .Config.Labels}}", *ids]
    # Another test may remove an image between the two, which fails `inspect` but not its output.
    return (
        subprocess.run(inspect, capture_output=True, text=True, check=False).stdout if ids else ""
    )


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
    subprocess.run([sys.executable, "-c", OWNERS, *argv], check=True, timeout=300 + 30 * rounds)
    # A container that was made and never started has no agent that could end it: it expires.
    orphans = ["cleanup", "--provider", provider, "--orphans", "--tag", f"crash:{run}"]
    subprocess.run([sys.executable, "-m", "sandboxkit", *orphans], check=True, timeout=120)
    with Session(provider) as session:
        deadline = time.monotonic() + SECONDS
        while left := session.list(f"crash:{run}").result(30):
            assert time.monotonic() < deadline, f"seed {seed}: {len(left)} sandboxes live on"
            time.sleep(0.05)
    cleanup = ["cleanup", "--provider", provider, "--snapshots", "--tag", f"crash:{run}"]
    subprocess.run([sys.executable, "-m", "sandboxkit", *cleanup], check=True, timeout=120)
    # Not Snapshot.list: this process would keep the provider of this state folder for other tests.
    again = subprocess.run(
        [sys.executable, "-m", "sandboxkit", *cleanup],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert again.stdout == "nothing to remove\n"
    if provider == "docker":
        assert run not in _image_labels(), seed
    snapshots = state / "snapshots"
    assert not snapshots.exists() or os.listdir(snapshots) == [], seed
    assert {path.name for path in state.iterdir()} <= {"snapshots"}, seed
