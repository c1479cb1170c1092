"""Clients of Docker elsewhere: in a container with the daemon's socket, and on what looks like macOS."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

from tests.data_here import beside
from tests.docker_here import require_docker
from tests.machines.test_containers import ROOT, Shape, run_in

PROGRAMS: dict[str, str] = beside(__file__, "programs.toml")
EXAMPLES = (
    "quickstart",
    "files",
    "web_app",
    pytest.param("tree_search", marks=pytest.mark.nightly),
)
"""Statuses and output, files, ports, snapshots."""
SOCKET = "/var/run/docker.sock"


@pytest.fixture
def macos(tmp_path: Path) -> Mapping[str, str]:
    """The variables of a program whose Python looks like macOS's."""
    (tmp_path / "sitecustomize.py").write_text(PROGRAMS["macos"])
    state = {"SANDBOXKIT_STATE_DIR": str(tmp_path / "state")}
    paths = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "SANDBOXKIT_DOCKER_IMAGE": require_docker()}
    return {**os.environ, **state, **paths}


def run_on(macos: Mapping[str, str], *argv: str) -> tuple[int, str]:
    """Run Python there; return its status and what it printed."""
    done = subprocess.run(
        [sys.executable, *argv],
        env=macos,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout


def path_and_output(name: str) -> tuple[str, str]:
    """Return an example and what it prints on this machine."""
    expected = (ROOT / "tests" / "examples" / "expected" / f"{name}.txt").read_text()
    return str(ROOT / "examples" / f"{name}.py"), expected


def without_times(text: str) -> str:
    return re.sub(r"\d+\.\d\d s$", "N s", text, flags=re.M)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_container_with_the_daemons_socket_makes_sandboxes_beside_itself(name: str) -> None:
    path, expected = path_and_output(name)
    variables = (f"SANDBOXKIT_DOCKER_IMAGE={require_docker()}", "SANDBOXKIT_PROVIDER=docker")
    shape = Shape([f"--volume={SOCKET}:{SOCKET}", *(f"--env={each}" for each in variables)])
    status, text = run_in(shape, "python3", "-W", "error", path)
    assert (status, without_times(text)) == (0, expected)


@pytest.mark.parametrize("name", EXAMPLES)
def test_docker_is_the_default_on_macos_and_does_the_same(
    macos: Mapping[str, str], name: str
) -> None:
    path, expected = path_and_output(name)
    status, text = run_on(macos, "-W", "error", path)
    assert (status, without_times(text)) == (0, expected)


def test_doctor_says_on_macos_that_local_needs_linux(macos: Mapping[str, str]) -> None:
    _, text = run_on(macos, "-m", "sandboxkit", "doctor", "-p", "local")
    assert "this is Darwin; the local provider needs Linux" in " ".join(text.split())
    assert "use provider='docker'" in text


@pytest.mark.nightly
@pytest.mark.anyio
async def test_no_sandbox_outlives_a_killed_client_on_macos(macos: Mapping[str, str]) -> None:
    command = [sys.executable, "-c", PROGRAMS["waits"]]
    with subprocess.Popen(command, env=macos, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        sandbox_id = await anyio.to_thread.run_sync(client.stdout.readline)
        client.kill()
    listed = ["docker", "ps", "--quiet", "--filter", f"name={sandbox_id.strip()}"]
    with anyio.fail_after(90):
        while (await anyio.run_process(listed)).stdout:  # the agent's doing
            await anyio.sleep(0.1)
