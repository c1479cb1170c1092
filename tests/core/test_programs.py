"""Forks, limits and the end of the interpreter: what is open is closed, and no call hangs or harms another process."""

import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir

import pytest

from sandboxkit.provider import close_in_forks
from tests.local_here import require_local

PROGRAMS = tomllib.loads(Path(__file__).with_name("interpreter_end.toml").read_text())


def ended(code: str, *args: str, folder: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *args], capture_output=True, text=True, timeout=160,
        env={**os.environ, "TMPDIR": folder or gettempdir()},
    )  # fmt: skip


def run(name: str, provider: str = "fake", folder: str = "") -> "subprocess.CompletedProcess[str]":
    return ended(PROGRAMS["prelude"] + PROGRAMS[name], provider, folder=folder)


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


def test_a_failed_thread_start_names_its_cause(tmp_path: Path) -> None:
    done = ended(PROGRAMS["no_threads"], str(tmp_path / "to"))
    assert done.returncode == 0, done.stderr
    *errors, after = done.stdout.splitlines()
    says = "ProviderUnavailableError this machine, not the sandbox, cannot start"
    assert errors
    assert all(each.startswith(says) for each in errors), errors
    assert after == "b'1'"


FORKS = tomllib.loads(Path(__file__).with_name("forks.toml").read_text())


@pytest.mark.parametrize("name", FORKS["programs"])
def test_a_program_and_its_forked_child_stay_apart(name: str, tmp_path: Path) -> None:
    done = ended(FORKS["prelude"] + FORKS["programs"][name] + FORKS["fork"], folder=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def forked(call: Callable[[], bool]) -> int:
    """The exit status of a child that says whether `call` is true there."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if call() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_close_in_forks_closes_the_childs_copy_alone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        close_in_forks(ours)
        close_in_forks(ours)
        held = ours.makefile("rb")
        assert forked(lambda: ours.fileno() == -1) == 0
        theirs.sendall(b"x\n")
        assert held.readline() == b"x\n"
        held.close()
    assert forked(lambda: True) == 0, "a socket that was closed before does no harm"


def test_a_reused_descriptor_number_stays_open_in_the_child() -> None:
    ours, theirs = socket.socketpair()
    close_in_forks(ours)
    number = ours.fileno()

    def child() -> bool:
        nonlocal ours
        again = os.open("/dev/null", os.O_RDONLY)
        while again < number:
            again = os.open("/dev/null", os.O_RDONLY)
        del ours
        return again == number and os.fstat(number) is not None

    assert forked(child) == 0
    ours.close()
    theirs.close()
