"""Runs a submission on cases, each in its own sandbox, and compares the results on the host."""

import functools
import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import anyio

from sandboxkit import ProcessResult, Session
from sandboxkit.integrations.rewards import _programs
from sandboxkit.integrations.rewards._cases import Case, ProgramCase
from sandboxkit.integrations.rewards._checkers import (
    Answer,
    FloatsChecker,
    HostChecker,
    LinesChecker,
    most_output,
)
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._prefetch import prefetch_queue
from sandboxkit.integrations.rewards._programs import processor_seconds
from sandboxkit.integrations.rewards._run import ended, run, run_program
from sandboxkit.integrations.rewards._values import (
    ForgedJsonError,
    Wire,
    may_equal,
    shown,
)
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict, failed

_LARGE = 64 << 10
"""Bytes of a value that is compared in a thread, so that the loop goes on meanwhile."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The code to grade, and the setup code that runs after it."""

    code: str
    setup: str = ""


async def evaluate(
    session: Session, submission: Submission, case: Case, limits: Limits
) -> Verdict | None:
    """Run one case; return None if it passed, else the verdict on the failure."""
    if isinstance(case, ProgramCase):
        return await _run_program(session, submission, case, limits)
    job = {
        "code": submission.code,
        "setup": submission.setup,
        "module": "solution",
        "source": case.source,
        "seconds": processor_seconds(limits),
    }
    program = _programs.evaluate(limits.python)
    result = await run(session, program, limits, stdin=json.dumps(job).encode())
    if isinstance(result, Verdict):
        return result
    answer = claimed(result, case.expected)
    if isinstance(answer, Verdict):
        return answer
    try:
        equal = functools.partial(case.comparison.equal, answer, case.expected)
        large = len(result.stdout_bytes) > _LARGE
        if await anyio.to_thread.run_sync(equal) if large else equal():
            return None
    except (ForgedJsonError, RecursionError) as error:
        return failed(shown(error), Outcome.TAMPERED)
    match answer:
        case ["opaque" | "object", str(name), *_]:
            return failed(f"{shown(case.source)} is a {shown(name)}, not plain data")
    return failed(f"{shown(case.source)} does not have the expected value")


def claimed(result: ProcessResult, expected: Wire) -> Wire | Verdict:
    """Return the value that the sandbox reports, still encoded and untrusted.

    Returns a Verdict if it reports an error, nothing, or a value far larger than `expected`.
    """
    if not result.stdout_bytes:
        return ended(result)
    if not may_equal(result.stdout_bytes, expected):
        return failed("the value is much larger than the expected one")
    try:
        answer = json.loads(result.stdout_bytes)
    except (ValueError, RecursionError):
        return failed("the result is not one JSON value", Outcome.TAMPERED)
    match answer:
        case ["value", value]:
            return value
        case ["memory"]:
            return failed("MemoryError", Outcome.OOM)
        case ["raised", str(phase), [str(name), *_], str(text), *_]:
            return failed(f"{shown(name)} while {shown(phase)}: {shown(text)}")
        case _:
            return failed("the result has an unknown form", Outcome.TAMPERED)


async def _run_program(
    session: Session, submission: Submission, case: ProgramCase, limits: Limits
) -> Verdict | None:
    expected = case.stdout.encode(errors="surrogateescape")
    limits = replace(limits, output_limit=min(limits.output_limit, most_output(expected)))
    stdin = case.stdin.encode(errors="surrogateescape")
    result = await run_program(session, submission.code, stdin=stdin, limits=limits)
    if isinstance(result, Verdict):
        return result
    if result.returncode != 0:
        last = result.stderr.strip().rpartition("\n")[2]
        return failed(f"exited with status {result.returncode}: {shown(last)}")
    comparison = case.comparison
    checker: HostChecker = LinesChecker()
    if comparison.rel_tol or comparison.abs_tol:
        checker = FloatsChecker(comparison.rel_tol, comparison.abs_tol)
    mark = await anyio.to_thread.run_sync(
        checker.mark, Answer(stdin, result.stdout_bytes, expected)
    )
    return None if mark.score == 1 else failed(f"did not print the expected output: {mark.detail}")


async def evaluate_all(
    session: Session,
    submission: Submission,
    cases: Sequence[Case],
    limits: Limits,
    *,
    partial: bool = False,
) -> Verdict:
    """Run the cases until one fails; with `partial` run all of them.

    The score is 1 if all pass, else 0, or with `partial` the share that passed. An infrastructure
    failure in any case masks the whole verdict. The verdict reports the first failure in the order
    of `cases`, even if the runs end in another order.
    """
    passed, first = 0, None
    runs = [functools.partial(evaluate, session, submission, case, limits) for case in cases]
    async with aclosing(prefetch_queue(session).in_order(runs)) as verdicts:
        async for verdict in verdicts:
            if verdict is None:
                passed += 1
                continue
            if verdict.outcome is Outcome.INFRA_ERROR:
                return verdict
            first = first or verdict
            if not partial:
                break
    if first is None:
        return Verdict(Outcome.PASSED, 1.0, "policy", f"{passed} of {passed} cases")
    score = passed / len(cases) if partial else 0.0
    return Verdict(first.outcome, score, "policy", first.detail)
