"""Control groups of version 2, in User-Mode Linux: limits, endings, sweeps, host uids and snapshots of kinds of users."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.components import needs_root, require_program
from tests.data_here import beside
from tests.docker_here import require_docker
from tests.outcomes import VARIABLE, read

ROOT = Path(__file__).parents[2]
TESTS: dict[str, dict[str, list[str]]] = beside(__file__, "uml.toml")
PROGRAMS: dict[str, str] = beside(__file__, "programs.toml")
pytestmark = [needs_root("a system boots with files of all users"), pytest.mark.timeout(600)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that User-Mode Linux shares with this machine, and with its users."""
    require_program("linux.uml")
    tmp_path.chmod(0o777)
    return tmp_path


def run_in_uml(folder: Path, who: str, *command: str) -> tuple[int, str]:
    """Run a command as one of the users; return its status and what it printed."""
    done = subprocess.run(
        [ROOT / "scripts" / "uml.sh", folder, who, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("who", TESTS)
def test_sandboxes_are_the_same_with_control_groups_of_version_2(who: str, folder: Path) -> None:
    names = [f"{file}::{name}" for file, found in TESTS[who].items() for name in found]
    outcomes = folder / "outcomes.jsonl"
    outcomes.touch()
    outcomes.chmod(0o666)  # what users make there belongs to root
    variables = [f"{VARIABLE}={outcomes}", "SANDBOXKIT_REQUIRE_DOCKER=1"]
    pytest_ = [".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *names]
    status, text = run_in_uml(folder, who, "env", *variables, *pytest_)
    assert status == 0, text
    with outcomes.open() as file:
        found = read(file)
    assert {each.result for each in found.values()} == {"passed"}, text
    assert {test.partition("[")[0] for test in found} == set(names), text


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("who", "programs", "expected"),
    [
        ("root", ["docker", "privileged"], "control groups limit cpu, memory, pids"),
        ("root", ["docker", "contract"], " passed"),
        ("delegated", ["dockerd-rootless", "quickstart"], "it limits nothing"),
        ("delegated", ["podman", "quickstart"], "it limits nothing"),
    ],
    ids=["a privileged container", "docker", "docker without root", "podman without root"],
)
def test_engines_and_their_containers_use_version_2(
    folder: Path, who: str, programs: list[str], expected: str
) -> None:
    image = require_docker()
    subprocess.run(["docker", "save", "--output", folder / "image.tar", image], check=True)
    os.chmod(folder / "image.tar", 0o644)
    for program in ("podman", "rootlesskit"):
        require_program(program)
    script = "\n".join(["set -e", *(PROGRAMS[each] for each in programs)])
    status, text = run_in_uml(folder, who, "bash", "-c", script, "bash", str(folder), image)
    assert status == 0, text
    assert expected in " ".join(text.split()), text
