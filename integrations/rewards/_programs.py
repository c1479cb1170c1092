"""The programs that run in sandboxes, each as a command and as a job of a warm interpreter."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

from sandboxkit import Interpreter
from sandboxkit.bundle import bundle
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.types import CommandSetup

_PACKAGE = "sandboxkit.integrations.rewards._in_sandbox"
_RUNS = ("encode", "decode", "submission")
_MODULES = {
    "submission": _RUNS,
    "judge": (*_RUNS, "running", "repository", "judge"),
    "shared": (*_RUNS, "running", "shared"),
}
"""The modules of each program, each behind those that it imports."""
_PRELOAD = (
    "bisect", "collections", "copy", "functools", "heapq", "itertools", "json", "math",
    "operator", "random", "re", "resource", "string", "threading", "types", "typing",
)  # fmt: skip
"""Modules that the warm interpreter imports: those of our programs, and those most often submitted."""


@dataclass(frozen=True, slots=True)
class SandboxProgram:
    """A program for a sandbox, run in a new Python process or in a fork of the sandbox's interpreter."""

    argv: tuple[str, ...]
    code: str | None = None
    """Code for a fork of the interpreter; None if the program needs a new Python process."""
    setup: CommandSetup | None = None
    """The limits of a new process; the code of a fork sets its own."""


def _code(name: str, call: str = "main()") -> str:
    return f"__import__('{_PACKAGE}.{name}', fromlist=['main']).{call}"


@cache
def interpreter(python: str) -> Interpreter:
    """Return the interpreter that jobs fork from. It has compiled our programs and holds no task's data."""
    return Interpreter(python, _PRELOAD, bundle(_PACKAGE, *_MODULES["judge"], "shared"))


def program(name: Literal["submission", "judge", "shared"], python: str) -> SandboxProgram:
    """Return a program that reads its job on stdin.

    "submission" loads a submission, evaluates an expression with its names, and perhaps calls the value; "judge" runs
    tests whose calls run elsewhere; "shared" runs tests in forks of the process that loaded the submission.
    """
    code = _code(name)
    return SandboxProgram((python, "-I", "-c", bundle(_PACKAGE, *_MODULES[name]) + code), code)


def file_program(path: str, limits: Limits) -> SandboxProgram:
    """Return the program that runs the file `path` within the submission's CPU time limit."""
    arguments = ", ".join(map(repr, (path, *processor_seconds(limits))))
    code = _code("submission", f"run_file({arguments})")
    return SandboxProgram((limits.python, "-I", path), code, setup=limited(limits))


def limited(limits: Limits) -> CommandSetup:
    """Return the setup of a command with a CPU time limit of `limits.timeout` per process.

    The kernel enforces the limit on every backend, and CPU time of other programs does not count.
    A process that ignores the signal is killed 1 s later.
    """
    return CommandSetup(rlimits={"cpu": processor_seconds(limits)})


def processor_seconds(limits: Limits) -> tuple[int, int]:
    """Return the soft and hard RLIMIT_CPU of one process, in seconds."""
    seconds = math.ceil(limits.timeout)
    return seconds, seconds + 1
