"""Runs a submission on cases and tests, and decides on the host what the answers are worth."""

import asyncio
import dataclasses
import functools
import json
import secrets
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from sandboxkit import ProcessResult, Sandbox, Session
from sandboxkit.integrations.rewards import _programs
from sandboxkit.integrations.rewards._boundary import shown
from sandboxkit.integrations.rewards._cases import Case, ProgramCase
from sandboxkit.integrations.rewards._checkers import (
    Answer,
    FloatsChecker,
    LinesChecker,
    most_output,
)
from sandboxkit.integrations.rewards._judge import judged, limits_of_judge, verdict_on
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._programs import processor_seconds
from sandboxkit.integrations.rewards._run import ended, retried, run, run_program
from sandboxkit.integrations.rewards._tests import Tests
from sandboxkit.integrations.rewards._values import ForgedJsonError, Wire, may_equal
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict, failed

_LARGE = 64 << 10
"""Bytes from which a value is compared in a thread, or read by the judge alone, so that the loop goes on meanwhile."""
_MOST_CALLS = 10_000
_TOKEN_BYTES = 32
_judges: "weakref.WeakKeyDictionary[Session, asyncio.Semaphore]" = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Submission:
    """The code to grade, and what the task adds to it."""

    code: str
    entry: str = ""
    """The function that is tested; a method of a class `Solution` stands for it."""
    prompt: Sequence[str] = ()
    """Statements that run before the code."""
    setup: str = ""
    """Code that runs after it."""

    def job(self, limits: Limits, module: str = "solution") -> dict[str, Any]:  # Any: JSON
        """Return what loads it in a sandbox, as the module of this name."""
        own = {**dataclasses.asdict(self), "module": module}
        return {**own, "seconds": processor_seconds(limits)}


async def _run_call(
    session: Session, job: dict[str, Any], limits: Limits
) -> ProcessResult | Verdict:
    program = _programs.program("submission", limits.python)
    return await run(session, program, limits, stdin=json.dumps(job).encode())


# Any: JSON.
def answer_of(result: ProcessResult) -> list[Any] | Verdict:
    """Return what a sandbox reports about a call, whose form is sure and whose content is untrusted.

    Returns a Verdict if it reports nothing, or that the submission failed before the call.
    """
    if not result.stdout_bytes:
        return ended(result)
    try:
        answer = json.loads(result.stdout_bytes)
    except (ValueError, RecursionError):
        return failed("the result is not one JSON value", Outcome.TAMPERED)
    match answer:
        case ["value", _] | ["value", _, [*_], str()]:
            return [*answer]
        case ["raised", "running", [*_], str(), str(), [*_], [*_], str()]:
            return [*answer]
        case ["raised", str(phase), _, str(kind), str(text), *_]:
            return failed(f"{shown(kind)} while {shown(phase)}: {shown(text)}")
        case ["memory", *_]:
            return failed("MemoryError", Outcome.OOM)
        case _:
            return failed("the result has an unknown form", Outcome.TAMPERED)


async def evaluate(
    session: Session, submission: Submission, case: Case, limits: Limits
) -> Verdict | None:
    """Run one case; return None if it passed, else the verdict on the failure."""
    if isinstance(case, ProgramCase):
        return await _run_program(session, submission, case, limits)
    job = {**submission.job(limits), "source": case.source}
    result = await _run_call(session, job, limits)
    if isinstance(result, Verdict):
        return result
    right = (case.expected, *case.others)
    answer = claimed(result, right)
    if isinstance(answer, Verdict):
        return answer
    try:
        large = len(result.stdout_bytes) > _LARGE
        for expected in right:
            equal = functools.partial(case.comparison.equal, answer, expected)
            if await anyio.to_thread.run_sync(equal) if large else equal():
                return None
    except (ForgedJsonError, RecursionError) as error:
        return failed(shown(error), Outcome.TAMPERED)
    match answer:
        case ["opaque", str(name), *_]:
            return failed(f"{shown(case.source)} is a {shown(name)}, not plain data")
    return failed(f"{shown(case.source)} does not have the expected value")


def claimed(result: ProcessResult, expected: Wire) -> Wire | Verdict:
    """Return the value that the sandbox reports, still encoded and untrusted.

    Returns a Verdict if it reports an error, nothing, or a value far larger than `expected`.
    """
    if not may_equal(result.stdout_bytes, expected):
        return failed("the value is much larger than the expected one")
    match answer_of(result):
        case ["value", value]:
            return value
        case Verdict() as verdict:
            return verdict
        case _:
            return failed("the result has an unknown form", Outcome.TAMPERED)


async def _run_program(
    session: Session, submission: Submission, case: ProgramCase, limits: Limits
) -> Verdict | None:
    expected = case.stdout.encode(errors="surrogateescape")
    limits = dataclasses.replace(
        limits, output_limit=min(limits.output_limit, most_output(expected))
    )
    stdin = case.stdin.encode(errors="surrogateescape")
    result = await run_program(session, submission.code, stdin=stdin, limits=limits)
    if isinstance(result, Verdict):
        return result
    if result.returncode != 0:
        last = result.stderr.strip().rpartition("\n")[2]
        return failed(f"exited with status {result.returncode}: {shown(last)}")
    comparison = case.comparison
    near = comparison.rel_tol or comparison.abs_tol
    checker = FloatsChecker(comparison.rel_tol, comparison.abs_tol) if near else LinesChecker()
    mark = await anyio.to_thread.run_sync(
        checker.mark, Answer(stdin, result.stdout_bytes, expected)
    )
    return None if mark.score == 1 else failed(f"did not print the expected output: {mark.detail}")


async def grade_isolated(
    session: Session, submission: Submission, tests: Tests, limits: Limits
) -> Verdict:
    """Grade a submission by tests that run in one sandbox and whose calls each run in another one.

    A submission that passes so must pass in one process too, where its calls share objects and state as in plain
    Python. The judge's sandbox is reset or removed afterwards. Raises NotPlainError if the tests turn out to pass
    something else than plain data. If the infrastructure still fails after `limits.retries`, the outcome is
    INFRA_ERROR.
    """
    own, program = limits_of_judge(limits), submission.job(limits, tests.module)
    count, seconds = 0, 0.0

    # Any: JSON.
    async def answer(_: str, content: Any) -> bytes | Verdict:
        nonlocal count, seconds
        count += 1
        if count > _MOST_CALLS or seconds > limits.deadline / 4:
            return failed(f"its {count} calls took {seconds:.0f} s", Outcome.TIMEOUT)
        name, args, kwargs, in_place = content
        job = {**program, "source": name, "args": args, "kwargs": kwargs, "in_place": in_place}
        result = await _run_call(session, job, limits)
        if isinstance(result, Verdict):
            return result
        seconds += min(result.duration, result.usage.processor_seconds or result.duration)
        if len(found := result.stdout_bytes.rstrip(b"\n")) <= _LARGE:
            checked = answer_of(result)
            return checked if isinstance(checked, Verdict) else json.dumps(checked).encode()
        if b"\n" in found:
            return failed("the result is not one JSON value", Outcome.TAMPERED)
        return found  # the judge parses it, in its own memory and time

    async def attempt(sandbox: Sandbox, _: bool) -> Verdict:
        nonlocal count, seconds
        count, seconds = 0, 0.0
        await sandbox.start()
        return await judged(sandbox, tests, own, answer)

    async def graded() -> Verdict:
        # Judges hold half of a pool at most, or a call would wait for ever for a sandbox.
        pooled = session.pool > 1 and limits.resets(session)
        room = _judges.setdefault(session, asyncio.Semaphore(max(session.pool // 2, 1)))
        async with room:
            return await retried(session, own, attempt, counted=pooled)

    verdict = await graded()
    if verdict.outcome is not Outcome.PASSED:
        return verdict
    more = 2 * seconds  # each call had a process and the limit of its own; now all have one
    longer = dataclasses.replace(
        limits,
        timeout=limits.timeout + more,
        wall=None if limits.wall is None else limits.wall + more,
        deadline=limits.deadline + more,
    )
    return await grade_shared(session, submission, tests, longer, at_once=True)


async def grade_shared(
    session: Session, submission: Submission, tests: Tests, limits: Limits, *, at_once: bool = False
) -> Verdict:
    """Grade a submission by tests that run in forks of the process that loaded it.

    Each named test has a fork of its own; lines, and with `at_once` all tests, run in one fork, in order. See CHEATS.md for what passes. If the
    infrastructure still fails after `limits.retries`, the outcome is INFRA_ERROR.
    """
    token = secrets.token_hex(_TOKEN_BYTES)
    named = all(map(str.isidentifier, ".".join(tests.tests).split(".")))
    groups = [[each] for each in tests.tests] if named and not at_once else [list(tests.tests)]
    job = {
        "submission": submission.job(limits, tests.module),
        "token": token,
        "tests": [{"sources": tests.sources, "tests": group} for group in groups],
    }
    program = _programs.program("shared", limits.python)
    result = await run(session, program, limits, stdin=json.dumps(job).encode())
    if not isinstance(result, Verdict):
        result = _verdict(result.stdout_bytes, token, len(groups)) or ended(result)
    return dataclasses.replace(result, trust="shared")


def _verdict(answer: bytes, token: str, count: int) -> Verdict | None:
    """Return the verdict for the program's output, or None if the output is empty.

    An output without the secret `token` counts as forged (TAMPERED).
    """
    if not answer:
        return None
    try:
        reply = json.loads(answer)
        if reply["token"] == token:
            return verdict_on(reply["results"], count)
    except (LookupError, TypeError, ValueError, RecursionError):
        pass
    return failed("the output was not written by the program that runs the tests", Outcome.TAMPERED)
