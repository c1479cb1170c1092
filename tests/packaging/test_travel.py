"""The page "How a call travels" names the files that a call really passes."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ("sandboxkit/", "providers/", "integrations/")
OTHER_TESTS = "*other tests:*"
FILE = re.compile(r"`((?:sandboxkit|providers|integrations)/[\w/]+\.py)`")

PROGRAMS = tomllib.loads(Path(__file__).with_name("travel.toml").read_text())


def traced(program: str) -> set[str]:
    """Return the files of this checkout in which code ran during every traced call of a program."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAMS["trace"] + program],
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
        cwd=ROOT,
    )
    # Background work, such as a sweep, may happen to run during one call, and not during each.
    every = set.intersection(*(set(line.split()) for line in run.stdout.splitlines()))
    return {path for path in every if path.startswith(OURS)}


def tables() -> tuple[set[str], set[str], set[str]]:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    page = page.partition("## How a call travels")[2].partition("\n## ")[0]
    command, _, grade = page.partition("HostCompare()")
    values, _, others = grade.partition(OTHER_TESTS)
    return set(FILE.findall(command)), set(FILE.findall(values)), set(FILE.findall(others))


def test_a_command_passes_the_files_of_the_page() -> None:
    assert traced(PROGRAMS["exec"]) == tables()[0]


@pytest.mark.parametrize(
    ("test", "judged"),
    [("assert add(1, 2) == 3", False), ("r = add(1, 2)\nassert isinstance(r, int)", True)],
    ids=["compared on the host", "run by a judge"],
)
def test_a_grade_passes_the_files_of_the_page(test: str, judged: bool) -> None:
    _, values, others = tables()
    passed = {
        path
        for path in traced(f"TEST = {test!r}\n{PROGRAMS['grade']}")
        if path.startswith("integrations/")
    }
    assert passed <= values | others
    assert passed >= (others if judged else values)
    assert len(values | others) <= 25
