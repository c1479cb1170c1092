"""Runs the cases of a problem, has each output checked, and combines the results into a verdict."""

import dataclasses
import functools
from collections.abc import Sequence
from contextlib import aclosing

import anyio

from sandboxkit import Operation, Session
from sandboxkit.integrations.rewards._boundary import shown
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._prefetch import prefetch_queue
from sandboxkit.integrations.rewards._verdict import Outcome, Part, Verdict
from sandboxkit.integrations.rewards.programs._checkers import (
    Answer,
    ExactChecker,
    FloatsChecker,
    HostChecker,
    LinesChecker,
    Mark,
    TokensChecker,
    UnorderedLinesChecker,
)
from sandboxkit.integrations.rewards.programs._compile import Compiled
from sandboxkit.integrations.rewards.programs._execute import ProgramRun, execute
from sandboxkit.integrations.rewards.programs._interactive import converse
from sandboxkit.integrations.rewards.programs._judge_program import check
from sandboxkit.integrations.rewards.programs._problem import JudgedCase, Problem
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram

_MOST_AT_ONCE = 16 << 10
"""Maximum size (bytes) of output and expected output that are compared on the event loop. It takes about a
millisecond; larger ones are compared in a thread, so that no other sandbox waits."""
_OURS = (
    ExactChecker,
    FloatsChecker,
    LinesChecker,
    TokensChecker,
    UnorderedLinesChecker,
)


async def evaluate(
    session: Session, program: Compiled, problem: Problem, limits: Limits, *, partial: bool
) -> Verdict:
    """Run the cases until one fails; with `partial` run all of them.

    The score is 1 if every case has its full score; otherwise it is 0, or with `partial` the weighted
    mean of the cases' scores. An infrastructure failure in any case masks the whole verdict. The
    verdict reports the first failure in the order of the cases. Raises ConfigurationError if the task's
    checker is broken, or if sandboxes lack the language's commands.
    """
    work = _evaluated(session, program, problem, limits, partial=partial)
    # On the background loop no case switches threads. A user's checker stays on its own loop.
    return await (Operation(work) if isinstance(problem.checker, (JudgeProgram, *_OURS)) else work)


async def _evaluated(
    session: Session, program: Compiled, problem: Problem, limits: Limits, *, partial: bool
) -> Verdict:
    parts: list[Part] = []
    runs = [
        functools.partial(_case, session, program, problem, case, limits) for case in problem.cases
    ]
    async with aclosing(prefetch_queue(session).in_order(runs)) as ended:
        async for part in ended:
            parts.append(part)
            if part.outcome is Outcome.INFRA_ERROR:
                detail = f"case {shown(part.name)}: {part.detail}"
                return Verdict(part.outcome, 0.0, "infra", detail, "isolated", tuple(parts))
            if part.outcome is not Outcome.PASSED and not partial:
                break
    return _whole(parts, problem.cases, partial=partial)


def _whole(parts: Sequence[Part], cases: Sequence[JudgedCase], *, partial: bool) -> Verdict:
    first = next((part for part in parts if part.outcome is not Outcome.PASSED), None)
    if first is None:
        detail = f"{len(parts)} of {len(parts)} cases"
        return Verdict(Outcome.PASSED, 1.0, "policy", detail, "isolated", tuple(parts))
    total = sum(case.weight for case in cases)
    score = sum(part.score * part.weight for part in parts) / total if partial else 0.0
    score = min(score, 1 - 1e-9)  # below 1 even if only cases of weight 0 failed
    detail = f"case {shown(first.name)}: {first.detail}"
    return Verdict(first.outcome, score, "policy", detail, "isolated", tuple(parts))


async def _case(
    session: Session, program: Compiled, problem: Problem, case: JudgedCase, limits: Limits
) -> Part:
    if problem.interactor is not None:
        files = {"input.txt": case.given.stdin, "answer.txt": case.stdout or b""}
        dialogue = await converse(session, program, problem.interactor, files, limits)
        ran = dialogue.ran
        mark: Mark | Verdict = dialogue.mark or Mark(0.0, "the interactor made no decision")
    else:
        ran = await execute(session, program, case.given, limits)
        mark = Mark(0.0)
        if ran.verdict is None:
            mark = await _checked(session, problem.checker, case, ran, limits)
    verdict = ran.verdict if ran.verdict is not None else mark
    part = _measured(case, ran)
    limit = limits.memory_mb if problem.memory_limit_mb else None
    if limit and part.peak_memory_bytes and part.peak_memory_bytes > limit << 20:
        verdict = Verdict(Outcome.OOM, 0.0, "policy", f"used more than {limit} MiB")
    if isinstance(verdict, Verdict):
        return dataclasses.replace(part, outcome=verdict.outcome, score=0.0, detail=verdict.detail)
    outcome = Outcome.PASSED if verdict.score == 1 else Outcome.FAILED
    return dataclasses.replace(part, outcome=outcome, score=verdict.score, detail=verdict.detail)


def _measured(case: JudgedCase, ran: ProgramRun) -> Part:
    part = Part(case.name, Outcome.FAILED, 0.0, case.weight)
    if ran.result is None:
        return part
    usage = ran.result.usage
    return dataclasses.replace(
        part,
        processor_seconds=usage.processor_seconds,
        wall_seconds=ran.result.duration,
        peak_memory_bytes=usage.peak_memory_bytes,
        output_bytes=len(ran.result.stdout_bytes),
    )


async def _checked(
    session: Session,
    checker: HostChecker | JudgeProgram,
    case: JudgedCase,
    ran: ProgramRun,
    limits: Limits,
) -> Mark | Verdict:
    assert ran.result is not None
    if case.stdout is not None:
        answer = Answer(case.given.stdin, ran.result.stdout_bytes, case.stdout)
        mark = await _decide(session, checker, answer, limits)
        if isinstance(mark, Verdict) or mark.score < 1:
            return mark
    for name, expected in case.outputs.items():
        own = checker if case.stdout is None and len(case.outputs) == 1 else LinesChecker()
        answer = Answer(case.given.stdin, ran.outputs[name], expected)
        mark = await _decide(session, own, answer, limits)
        if isinstance(mark, Verdict) or mark.score < 1:
            return mark
    return Mark(1.0)


async def _decide(
    session: Session, checker: HostChecker | JudgeProgram, answer: Answer, limits: Limits
) -> Mark | Verdict:
    if isinstance(checker, JudgeProgram):
        return await check(session, checker, answer, limits)
    if len(answer.output) + len(answer.expected) <= _MOST_AT_ONCE or not isinstance(checker, _OURS):
        return checker.mark(answer)
    return await anyio.to_thread.run_sync(checker.mark, answer)
