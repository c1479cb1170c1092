"""The examples and the command line run unchanged with SANDBOXKIT_PROVIDER=e2b."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulators._server import Server

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
EXPECTED = ROOT / "tests" / "examples" / "expected"


def run(*argv: str, stdin: str = "") -> str:
    """Run a program as a user would, warnings being errors; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *argv],
        env={**os.environ, "SANDBOXKIT_PROVIDER": "e2b"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "path", [path for path in EXAMPLES if path.stem != "swap_provider"], ids=lambda path: path.stem
)
def test_an_example_prints_what_it_prints_elsewhere(server: Server, path: Path) -> None:
    expected = (EXPECTED / f"{path.stem}.txt").read_text().splitlines()
    assert sorted(run(str(path)).splitlines()) == sorted(expected)


def test_swapping_the_provider(server: Server) -> None:
    path = str(ROOT / "examples" / "swap_provider.py")
    assert run(path, "local", "e2b").splitlines() == [
        "local: Linux /workspace 0",
        "e2b: Linux /workspace 0",
    ]


def test_the_command_line(server: Server) -> None:
    sandboxkit = ("-m", "sandboxkit")
    assert run(*sandboxkit, "run", "--", "python3", "-c", "print(6 * 7)") == "42\n"
    assert run(*sandboxkit, "run", "-i", "--", "cat", stdin="in") == "in"
    sandbox_id = run(*sandboxkit, "run", "-d", "--", "sh", "-c", "echo up; sleep 1000").strip()
    assert server.alive == [sandbox_id]
    assert run(*sandboxkit, "exec", sandbox_id, "--", "echo", "inside") == "inside\n"
    assert run(*sandboxkit, "logs", sandbox_id) == "up\n"
    (listed,) = json.loads(run(*sandboxkit, "ls", "--json"))
    assert listed["id"] == sandbox_id
    run(*sandboxkit, "stop", sandbox_id)


def test_the_demo(server: Server) -> None:
    demo = json.loads(run("-m", "sandboxkit", "demo", "--json", "--limit", "2", "--timeout", "60s"))
    assert demo["provider"] == "e2b"
    assert (demo["reference"]["passed"], demo["broken"]["failed"]) == (2, 2)


_KILLED = """
import os, signal
from sandboxkit import Session
Session("e2b").sandbox().start().result(60)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_program_left_is_cleaned_up(server: Server) -> None:
    subprocess.run([sys.executable, "-c", _KILLED], timeout=60, check=False)
    assert len(server.alive) == 1
    run("-m", "sandboxkit", "cleanup", "--orphans")
    assert server.alive == []
