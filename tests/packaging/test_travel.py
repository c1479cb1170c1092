"""The page "How a call travels" names the files that a call really passes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ("sandboxkit/", "providers/", "integrations/")
OTHER_TESTS = "*other tests:*"
FILE = re.compile(r"`((?:sandboxkit|providers|integrations)/[\w/]+\.py)`")

# Prints a line for each pair of `begin()` and `end()`: the files in which code ran in between.
TRACE = """
import atexit, os, sys, threading
import sandboxkit

root = os.path.dirname(os.path.dirname(os.path.realpath(sandboxkit.__file__))) + os.sep
seen = None

def profile(frame, event, argument):
    if seen is not None and event == "call":
        seen.add(os.path.realpath(frame.f_code.co_filename))

def begin():
    global seen
    seen = set()

def end():
    global seen
    found, seen = seen, None
    print(*sorted(each.removeprefix(root) for each in found if each.endswith(".py")))

threading.setprofile(profile)
sys.setprofile(profile)
"""

EXEC = """
with sandboxkit.Session(provider="local") as session, session.sandbox() as sandbox:
    sandbox.exec(["true"]).result()
    for _ in range(5):
        begin()
        sandbox.exec(["true"]).result()
        end()
"""

GRADE = """
import asyncio
from sandboxkit.integrations.rewards import HostCompare

async def main():
    async with sandboxkit.Session(provider="local") as session:
        for traced in (False, True):
            begin() if traced else None
            code = "def add(a, b):\\n    return a + b"
            verdict = await HostCompare().grade(session, code, {"test_list": [TEST]})
            end() if traced else None
            assert verdict.score == 1.0, verdict

asyncio.run(main())
"""


def traced(program: str) -> set[str]:
    """Return the files of this checkout in which code ran during every traced call of a program."""
    run = subprocess.run(
        [sys.executable, "-c", TRACE + program],
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
    """Return the files of the page: of a command, of a grade by values, of a grade by other tests."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    page = page.partition("## How a call travels")[2].partition("\n## ")[0]
    command, _, grade = page.partition("HostCompare()")
    values, _, others = grade.partition(OTHER_TESTS)
    return set(FILE.findall(command)), set(FILE.findall(values)), set(FILE.findall(others))


def test_a_command_passes_the_files_of_the_page() -> None:
    assert traced(EXEC) == tables()[0]


@pytest.mark.parametrize(
    ("test", "judged"),
    [("assert add(1, 2) == 3", False), ("r = add(1, 2)\nassert isinstance(r, int)", True)],
    ids=["compared on the host", "run by a judge"],
)
def test_a_grade_passes_the_files_of_the_page(test: str, judged: bool) -> None:
    _, values, others = tables()
    passed = {
        path for path in traced(f"TEST = {test!r}\n{GRADE}") if path.startswith("integrations/")
    }
    assert passed <= values | others
    assert passed >= (others if judged else values)
    assert len(values | others) <= 25
