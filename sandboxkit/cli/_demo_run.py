"""Runs each program of `sandboxkit demo` in its own sandbox and records the outcomes."""

import collections
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from sandboxkit import CommandTimeoutError, Process, SandboxError, Session, wait
from sandboxkit.cli import _mbpp

Kind = Literal["passed", "failed", "timed out", "infra error"]
"""The outcomes that a program can have."""
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The outcome of one program."""

    program: _mbpp.MbppProgram
    kind: Kind
    seconds: float
    """Seconds from the request for a sandbox to the end of the program."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All outcomes and the total time."""

    outcomes: list[ProgramResult]
    seconds: float

    @property
    def succeeded(self) -> bool:
        """Whether every reference solution passed and every broken variant failed or timed out."""
        return not any(map(unexpected, self.outcomes))

    def count(self, kind: Kind, *, broken: bool) -> int:
        """How many programs, broken ones or references, had this outcome."""
        return sum(each.kind == kind and each.program.broken is broken for each in self.outcomes)

    def latency(self, percent: int) -> float:
        """Return a latency percentile (s) of the programs that passed or failed."""
        ended = [each.seconds for each in self.outcomes if each.kind in ("passed", "failed")]
        return statistics.quantiles(ended, n=100)[percent - 1] if len(ended) > 1 else 0.0


def run(
    session: Session,
    programs: Iterable[_mbpp.MbppProgram],
    concurrency: int,
    timeout: float,
    seen: Callable[[ProgramResult], None],
) -> Report:
    """Run every program in its own sandbox, at most `concurrency` at a time, with `timeout` (s) each.

    `seen` is called with each outcome.
    """
    started = time.monotonic()
    queue = collections.deque(programs)
    running: dict[Process, tuple[_mbpp.MbppProgram, float]] = {}
    outcomes: list[ProgramResult] = []

    while queue or running:
        while queue and len(running) < concurrency:
            program = queue.popleft()
            began = time.monotonic()
            process = session.run(["python3", "-I", "-c", program.source], timeout=timeout)
            running[process] = (program, began)
        for process in wait(list(running))[0]:
            program, began = running.pop(process)
            kind, detail = _judge(process)
            outcomes.append(ProgramResult(program, kind, time.monotonic() - began, detail))
            seen(outcomes[-1])
    return Report(outcomes, time.monotonic() - started)


def unexpected(outcome: ProgramResult) -> bool:
    """Return whether the outcome is wrong: a reference must pass, a broken variant fail or time out."""
    good = ("failed", "timed out") if outcome.program.broken else ("passed",)
    return outcome.kind not in good


def _judge(process: Process) -> tuple[Kind, str]:
    try:
        result = process.result()
    except CommandTimeoutError:
        return "timed out", ""
    except SandboxError as error:
        return "infra error", str(error)
    if result.returncode == 0:
        return "passed", ""
    return "failed", result.stderr.strip().rpartition("\n")[2]
