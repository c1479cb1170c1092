"""The interpreter's end: what is open is closed, what could not be is named, and nothing hangs."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import gettempdir

import pytest

from tests.local_here import require_local

PROGRAMS = tomllib.loads(Path(__file__).with_name("interpreter_end.toml").read_text())


def run(name: str, provider: str = "fake", folder: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAMS["prelude"] + PROGRAMS[name], provider],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TMPDIR": folder or gettempdir()},
    )


@pytest.mark.parametrize("name", ["early", "late", "handler", "callback", "daemon"])
def test_objects_closed_late_find_everything_closed(name: str) -> None:
    done = run(name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "begun\n", "")


@pytest.mark.parametrize("name", ["generator", "early"])
def test_real_sandboxes_closed_late_are_closed_already(name: str) -> None:
    require_local()
    done = run(name, "local")
    assert (done.returncode, done.stdout, done.stderr) == (0, "begun\n", "")


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("finalizer", "ended\n"),
        ("unfinished", "SandboxTerminatedError: "),
        ("refused", "ConfigurationError: the interpreter is exiting"),
    ],
)
def test_a_call_while_the_interpreter_ends_returns_or_raises(name: str, printed: str) -> None:
    done = run(name)
    assert done.returncode == 0
    assert done.stderr == "" or name == "unfinished"
    assert done.stdout.startswith(f"begun\n{printed}")
    assert name != "refused" or "make it earlier" in done.stdout


def test_sandboxes_that_cannot_be_closed_are_named_and_the_rest_is_closed(tmp_path: Path) -> None:
    done = run("unclosed", folder=str(tmp_path))  # what is left is pytest's to remove
    stuck, broken, well, deleted = done.stdout.split()
    output = sorted(done.stderr.splitlines(), key=lambda line: stuck not in line)
    assert (done.returncode, deleted, len(output)) == (0, "deleted", 2)
    assert output[0].startswith(f"<Session {stuck} provider=fake> was not closed")
    assert "TimeoutError" in output[0]
    assert output[1].startswith(f"<Session {broken} provider=fake> was not closed")
    assert "OSError no way; 'sandboxkit ls'" in output[1]
    assert well not in done.stderr


def test_a_subinterpreter_is_refused() -> None:
    pytest.importorskip("_xxsubinterpreters")
    done = run("subinterpreter")
    assert done.returncode == 0, done.stderr
    assert "use it in Python's main interpreter" in done.stdout
