"""Local sandboxes in containers of Docker work, or the error names both ways out and Landlock works."""

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.data_here import beside
from tests.docker_here import require_docker
from tests.local.conftest import PROGRAMS
from tests.local.test_landlock import HERE as LOCAL
from tests.local.test_landlock import needs_landlock, outcome

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "examples" / "quickstart.py")
PRINTED = (ROOT / "tests" / "examples" / "expected" / "quickstart.txt").read_text()
INSTEAD = "choose isolation='landlock', or SANDBOXKIT_LOCAL_ISOLATION=landlock"
FLAGS = (
    "allow namespaces: in Docker with --security-opt seccomp=unconfined --security-opt systempaths=unconfined, in a "
    "pod with the fields securityContext.seccompProfile.type=Unconfined, securityContext.procMount=Unmasked and "
    "hostUsers=false"
)


class Shape(NamedTuple):
    """A container: Docker's options; where local is refused, the reason and the way out for those who can change it."""

    options: list[str]
    missing: str = ""
    way_out: str = FLAGS

    def refused(self, text: str) -> bool:
        """Whether a text has the reason and both ways out."""
        words = " ".join(text.split())
        return all(each in words for each in (self.missing, INSTEAD, self.way_out))


ROWS: dict[str, dict[str, Any]] = beside(__file__, "containers.toml")  # Any: fields of Shape
SHAPES = {name: Shape(**found) for row in ROWS.values() for name, found in row.items()}


def run_in(shape: Shape, *argv: str) -> tuple[int, str]:
    """Run a command in a container with this project; return its status and what it printed."""
    paths = [str(ROOT), *(each for each in sys.path if each.endswith("site-packages"))]
    mounts = [f"--volume={each}:{each}:ro" for each in paths]
    variables = [f"--env=PYTHONPATH={':'.join(paths)}", "--env=PYTHONDONTWRITEBYTECODE=1"]
    command = ["docker", "run", "--rm", "--network=none", "--label=sandboxkit-test", *mounts]
    command += [*variables, *shape.options, require_docker(), *argv]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
    )
    return done.returncode, done.stdout


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> Shape:
    return SHAPES[request.param]


def test_local_works_or_its_error_names_the_reason_and_both_ways_out(shape: Shape) -> None:
    status, text = run_in(shape, "python3", QUICKSTART)
    if shape.missing:
        assert status != 0
        assert shape.refused(text)
    else:
        assert (status, text) == (0, PRINTED)


def test_doctor_says_the_same(shape: Shape) -> None:
    status, text = run_in(shape, "python3", "-m", "sandboxkit", "doctor", "-p", "local")
    assert bool(status) is shape.refused(text) is bool(shape.missing)
    assert ("control groups limit nothing" in " ".join(text.split())) is not bool(shape.missing)


@needs_landlock
def test_landlock_runs_the_quickstart(shape: Shape) -> None:
    with_landlock = "--env=SANDBOXKIT_LOCAL_ISOLATION=landlock"
    found = run_in(Shape([*shape.options, with_landlock]), "python3", QUICKSTART)
    assert found == (0, PRINTED)


@needs_landlock
def test_the_demo_takes_the_strongest_isolation_and_says_which(shape: Shape) -> None:
    status, text = run_in(shape, "python3", "-m", "sandboxkit", "demo", "--limit", "1")
    assert status == 0, text
    assert ("isolation='landlock', because " in text) is bool(shape.missing)
    assert "as expected" in text


@needs_landlock
@pytest.mark.parametrize("name", [name for name, each in SHAPES.items() if each.missing])
def test_no_attack_succeeds_with_landlock(name: str) -> None:
    code = PROGRAMS["client"] + "".join(
        f"    {line}\n" for line in PROGRAMS["landlock_is_attacked"].splitlines()
    )
    status, text = run_in(SHAPES[name], "python3", "-c", code + "anyio.run(main)\n", str(LOCAL))
    assert status == 0, text
    outcome(text, "user" in name or "without_capabilities" in name)


ELSEWHERE = {
    "a machine of your own, as root",
    "the same, as a user",
    "a container with the daemon's socket",
    "a laptop with Docker Desktop (macOS, Windows)",
    "a laptop with Podman",
    "a user's own Docker daemon, without root",
    "a machine with an arm64 processor",
}
"""The rows of which other files test something."""


def test_the_page_says_what_these_tests_have_found() -> None:
    page = (ROOT / "docs" / "where-it-runs.md").read_text()
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    rows = {where: (works, isolation, tested) for where, works, _, isolation, tested in lines[1:]}
    assert {where for where in rows if rows[where][2] != "no"} == ROWS.keys() | ELSEWHERE
    for where, shapes in ROWS.items():
        works, isolation, _ = rows[where]
        refused = any("missing" in shape for shape in shapes.values())
        assert ('`local` with `isolation="landlock"`' in works) is refused
        assert ("Landlock" in isolation, "namespaces" in isolation) == (refused, not refused)
