"""A parent's objects in a forked child: each call returns or raises at once, and harms nothing."""

import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxkit.provider import close_in_forks

DATA = tomllib.loads(Path(__file__).with_name("forks.toml").read_text())


@pytest.mark.parametrize("name", DATA["programs"])
def test_a_program_and_its_forked_child_do_not_disturb_each_other(
    name: str, tmp_path: Path
) -> None:
    code = DATA["prelude"] + DATA["programs"][name] + DATA["fork"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=160,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
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
