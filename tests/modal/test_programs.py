"""The examples and the command line run unchanged with SANDBOXKIT_PROVIDER=modal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulators.modal.client import ModalEmulator

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
EXPECTED = ROOT / "tests" / "examples" / "expected"


def run(*argv: str, stdin: str = "") -> str:
    """Run a program as a user would, warnings being errors; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *argv],
        env={**os.environ, "SANDBOXKIT_PROVIDER": "modal"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "path", [path for path in EXAMPLES if path.stem != "swap_provider"], ids=lambda path: path.stem
)
def test_an_example_prints_what_it_prints_elsewhere(emulator: ModalEmulator, path: Path) -> None:
    expected = (EXPECTED / f"{path.stem}.txt").read_text().splitlines()
    assert sorted(run(str(path)).splitlines()) == sorted(expected)


def test_swapping_the_provider(emulator: ModalEmulator) -> None:
    path = str(ROOT / "examples" / "swap_provider.py")
    assert run(path) == "modal: Linux /workspace 0\n"
    assert run(path, "local", "modal").splitlines() == [
        "local: Linux /workspace 0",
        "modal: Linux /workspace 0",
    ]


def test_the_command_line(emulator: ModalEmulator) -> None:
    sandboxkit = ("-m", "sandboxkit")
    assert run(*sandboxkit, "run", "--", "python3", "-c", "print(6 * 7)") == "42\n"
    assert run(*sandboxkit, "run", "-i", "--", "cat", stdin="in") == "in"
    sandbox_id = run(*sandboxkit, "run", "-d", "--", "sh", "-c", "echo up; sleep 1000").strip()
    assert emulator.running() == [sandbox_id]
    assert run(*sandboxkit, "exec", sandbox_id, "--", "echo", "inside") == "inside\n"
    assert run(*sandboxkit, "logs", sandbox_id) == "up\n"
    (listed,) = json.loads(run(*sandboxkit, "ls", "--json"))
    assert listed["id"] == sandbox_id
    run(*sandboxkit, "stop", sandbox_id)
    assert emulator.running() == []


def test_the_demo(emulator: ModalEmulator) -> None:
    demo = json.loads(run("-m", "sandboxkit", "demo", "--json", "--limit", "2", "--timeout", "60s"))
    assert demo["provider"] == "modal"
    assert (demo["reference"]["passed"], demo["broken"]["failed"]) == (2, 2)


_KILLED = """
import os, signal
from sandboxkit import Session
Session("modal").sandbox().start().result(60)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_program_left_is_cleaned_up(emulator: ModalEmulator) -> None:
    subprocess.run([sys.executable, "-c", _KILLED], timeout=60, check=False)
    assert len(emulator.running()) == 1
    run("-m", "sandboxkit", "cleanup", "--orphans")
    assert emulator.running() == []
