"""For tests that run a submission beside themselves: it lies in /tests when tests start.

A test.sh ends with `exec python3 -I /tests/verify.py`, and verify.py puts its folder on sys.path,
imports this and calls `judge` with its checks. The tests are then in the memory of one process
only: their folder is removed before the first run, and memory is closed to other processes of
the same user. Values are compared here. At the end every other process is killed before the
reward is written, so that none can change it afterwards.
"""

import ctypes
import json  # noqa: F401 - loaded now: later the submission may have changed the files
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

_PR_SET_DUMPABLE = 4
_REWARD = "/logs/verifier/reward.txt"
_MAX_OUTPUT = 1 << 20


class Wrong(Exception):
    """A check failed."""


def run(
    argv: Sequence[str],
    *,
    stdin: str = "",
    cwd: str = "/workspace",
    timeout: float = 30.0,
    env: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Run a program of the submission: its exit status and standard output."""
    # Not a pipe: a process that it leaves behind could hold one open.
    with open(os.memfd_create("stdout"), "w+b") as output:
        try:
            done = subprocess.run(
                argv,
                input=stdin.encode(),
                stdout=output,
                stderr=subprocess.DEVNULL,
                cwd=cwd,
                timeout=timeout,
                env={"PATH": os.environ["PATH"], "HOME": "/tmp", "LANG": "C.UTF-8", **(env or {})},
            )
        except subprocess.TimeoutExpired:
            raise Wrong(f"{argv[0]} ran past {timeout:g} s") from None
        except OSError as error:
            raise Wrong(f"{argv[0]} cannot be run: {error}") from None
        output.seek(0)
        return done.returncode, output.read(_MAX_OUTPUT).decode(errors="replace")


def equal(observed: object, expected: object, what: str) -> None:
    """Raise Wrong unless both are the same, of the same type."""
    if type(observed) is not type(expected) or observed != expected:
        raise Wrong(f"{what} is wrong")


def judge(*checks: Callable[[], None]) -> None:
    """Run the checks, write 1.0 if none fails and else 0.0, and exit."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    shutil.rmtree(os.path.dirname(os.path.abspath(__file__)))
    wrong = ""
    for check in checks:
        try:
            check()
        except Exception as error:  # noqa: BLE001 - whatever a check meets, it did not pass
            wrong = f"{check.__name__}: {type(error).__name__}: {error}"
            break
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass  # there is no other
    shutil.rmtree(os.path.dirname(_REWARD), ignore_errors=True)
    os.makedirs(os.path.dirname(_REWARD))
    with open(_REWARD, "w", encoding="ascii") as file:
        file.write("0.0" if wrong else "1.0")
    sys.stdout.write(wrong or "all checks passed")
    sys.stdout.flush()
    os._exit(1 if wrong else 0)
