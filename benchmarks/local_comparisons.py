"""A fresh local sandbox for one command against the same command with no sandbox."""

import subprocess
import sys

from benchmarks.comparisons import Comparison, interleaved, near
from sandboxkit import Session

ARGV = ["python", "-c", "print(1)"]


def fresh_sandbox(rounds: int) -> list[Comparison]:
    """From nothing to the program's output, and from a process to its output."""
    # The interpreter that the sandbox sees, not a virtual environment's link to it.
    bare_argv = [getattr(sys, "_base_executable", sys.executable), *ARGV[1:]]
    with Session("local") as session:
        ours, bare = interleaved(
            2 * rounds,
            lambda: session.run(ARGV, check=True).result(),
            lambda: subprocess.run(bare_argv, capture_output=True, check=True),
        )
    return [near("local, fresh sandbox, `python -c`", ours, bare, "subprocess.run", 2.2)]
