"""The floor: the same command as a process of this machine, with no sandbox at all."""

import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.sides.http_gets import SERVER, gets
from benchmarks.sides.serve import Work, expect, mbpp_rows, serve

PYTHON = str(getattr(sys, "_base_executable", sys.executable))
"""The interpreter itself, not a virtual environment's link to it."""


@contextmanager
def command(argv: list[str], stdout: str) -> Iterator[Work]:
    """`subprocess.run`; `python3` is the interpreter that a local sandbox has."""
    argv = [PYTHON if argv[0] == "python3" else argv[0], *argv[1:]]

    def one(_: int) -> None:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
        expect("status and output", (done.returncode, done.stdout), (0, stdout))

    yield Work(one)


@contextmanager
def mbpp(problems: str) -> Iterator[Work]:
    """A problem's solution and its tests in one process, which is believed."""
    rows = mbpp_rows(problems)

    def one(number: int) -> None:
        row = rows[number % len(rows)]
        code = "\n".join((row["code"], row["test_setup_code"], *row["test_list"]))
        done = subprocess.run([PYTHON, "-I", "-c", code], capture_output=True, timeout=60)
        expect(f"problem {row['task_id']}", done.returncode, 0)

    yield Work(one)


@contextmanager
def loopback() -> Iterator[Work]:
    """GET requests to a server of this machine."""
    with subprocess.Popen([PYTHON, "-c", SERVER], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            with gets(int(server.stdout.readline())) as get:
                yield Work(get)
        finally:
            server.kill()


if __name__ == "__main__":
    serve(
        platform.python_version(),
        {
            "fresh": command,
            "living": command,
            "run_python": command,
            "mbpp": mbpp,
            "loopback": loopback,
        },
    )
