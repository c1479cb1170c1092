"""Runs the cases of a problem, has each output checked, and combines the results into a verdict.

Short cases run in series in one sandbox, which is reset between them; a case that this does not suit runs by itself.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import anyio

from sandboxkit import Ending, ProcessResult, Sandbox, SandboxError, Session
from sandboxkit.integrations.rewards._boundary import shown
from sandboxkit.integrations.rewards._checkers import (
    OURS,
    Answer,
    HostChecker,
    LinesChecker,
    Mark,
    TaskError,
    most_output,
)
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._prefetch import prefetch_queue
from sandboxkit.integrations.rewards._run import (
    KILLED,
    OUT_OF_TIME,
    out_of_time,
    processors,
    retried,
)
from sandboxkit.integrations.rewards._verdict import Outcome, Part, Verdict, failed, masked
from sandboxkit.integrations.rewards.programs._compile import Compiled
from sandboxkit.integrations.rewards.programs._execute import (
    ProgramInput,
    ProgramRun,
    ended_run,
    execute,
    setup,
)
from sandboxkit.integrations.rewards.programs._interactive import converse
from sandboxkit.integrations.rewards.programs._judge_program import check
from sandboxkit.integrations.rewards.programs._problem import JudgedCase, Problem
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram
from sandboxkit.integrations.rewards.programs._toolchain import NOT_FOUND, require
from sandboxkit.types import CommandInput, CommandSeries, CommandUsage

_MOST_AT_ONCE = 16 << 10
"""Maximum size (bytes) of output and expected output that are compared on the event loop. It takes about a
millisecond; larger ones are compared in a thread, so that no other sandbox waits."""
_FIRST_BATCH, _MOST_BATCH = 4, 32
"""How many cases run in one sandbox, one after another; each batch has twice as many as the one before."""
_SHORT, _SHORT_ELAPSED = 0.1, 0.5
"""CPU time and elapsed time (s) from which a case is not worth a series: the next cases had better run at the same
time. The elapsed time may be the doing of other programs, so it is much longer."""
_RUN, _SERIES = 2.0, 5.0
"""The longest run (s) in a series, and the elapsed time (s) after which no run of it starts. A longer run is ended,
and repeated by itself. On a busy machine short programs take long, and a series still costs least."""
_MOST_BYTES = 3 << 20
"""The largest program and inputs, in bytes together, that are sent along with the series."""
_OUTPUT_BYTES = 256 << 10
_PATIENCE = 60.0
"""How long (s) a series may take beyond its own limits; the resets take longer on a busy machine."""


async def evaluate(
    session: Session, program: Compiled, problem: Problem, limits: Limits, *, partial: bool
) -> Verdict:
    """Run the cases until one fails; with `partial` run all of them.

    The score is 1 if every case has its full score; otherwise it is 0, or with `partial` the weighted
    mean of the cases' scores. An infrastructure failure in any case masks the whole verdict. The
    verdict reports the first failure in the order of the cases. A task whose checker fails for its own expected
    output is masked. Raises ConfigurationError if sandboxes lack the language's commands.
    """
    return await _Evaluation(session, program, problem, limits, partial).verdict()


@dataclass
class _Evaluation:
    """The evaluation of one submission."""

    _session: Session
    _program: Compiled
    _problem: Problem
    _limits: Limits
    _partial: bool

    def __post_init__(self) -> None:
        self._short = self._problem.interactor is None
        """Whether the runs so far were short, so that more of them may share a sandbox."""

    async def verdict(self) -> Verdict:
        """Run the cases until one fails; with `partial` all of them."""
        parts: list[Part] = []
        runs = [functools.partial(self._batch, cases) for cases in self._batches()]
        async with aclosing(prefetch_queue(self._session).in_order(runs)) as ended:
            async for batch in ended:
                parts += batch
                if parts[-1].outcome is Outcome.INFRA_ERROR:
                    detail = f"case {shown(parts[-1].name)}: {parts[-1].detail}"
                    done = tuple(parts)
                    return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail, "isolated", done)
                if self._is_last(parts[-1]):
                    break
        first = next((part for part in parts if part.outcome is not Outcome.PASSED), None)
        if first is None:
            detail = f"{len(parts)} of {len(parts)} cases"
            return Verdict(Outcome.PASSED, 1.0, "policy", detail, "isolated", tuple(parts))
        total = sum(case.weight for case in self._problem.cases)
        score = sum(part.score * part.weight for part in parts) / total if self._partial else 0.0
        score = min(score, 1 - 1e-9)  # below 1 even if only cases of weight 0 failed
        detail = f"case {shown(first.name)}: {first.detail}"
        return Verdict(first.outcome, score, "policy", detail, "isolated", tuple(parts))

    def _batches(self) -> Iterator[Sequence[JudgedCase]]:
        """Divide the cases into batches: small ones first, since a wrong program fails soon."""
        cases, size = self._problem.cases, _FIRST_BATCH if self._short else 1
        while cases:
            yield cases[:size]
            cases, size = cases[size:], min(2 * size, _MOST_BATCH) if self._short else 1

    async def _batch(self, cases: Sequence[JudgedCase]) -> list[Part]:
        """Run and check cases until one fails; with `partial`, until one has no verdict.

        They run in one sandbox as far as this works; each of the others then has a sandbox of its own.
        """
        parts: list[Part] = []
        while cases and self._short:
            results = await self._series(cases)
            for case, result in zip(cases, results, strict=False):
                parts.append(await self._judged(case, await self._run(result)))
                if self._is_last(parts[-1]):
                    return parts
            cases = cases[len(results) :]
            if cases:  # this case may have exceeded a limit of the series
                parts.append(await self._case(cases[0]))
                if self._is_last(parts[-1]):
                    return parts
                cases = cases[1:]
                self._short = self._short and _is_short(
                    parts[-1].processor_seconds, parts[-1].wall_seconds
                )
        runs = [functools.partial(self._case, case) for case in cases]
        async with aclosing(prefetch_queue(self._session).in_order(runs, inside=True)) as ended:
            async for part in ended:
                parts.append(part)
                if self._is_last(part):
                    break
        return parts

    async def _series(self, cases: Sequence[JudgedCase]) -> list[ProcessResult]:
        inputs = [case.given for case in cases]
        results = await _execute_each(self._session, self._program, inputs, self._limits)
        self._short = bool(results) and all(
            _is_short(result.usage.processor_seconds, result.duration) for result in results
        )
        return results

    async def _run(self, result: ProcessResult) -> ProgramRun:
        if result.returncode == OUT_OF_TIME:
            return ProgramRun(result, out_of_time(self._limits))
        if result.returncode in NOT_FOUND:
            lost = await require(self._session, self._program.language, self._limits)
            if lost is not None:
                return ProgramRun(None, lost)
        return ended_run(result)

    def _is_last(self, part: Part) -> bool:
        failed = part.outcome is not Outcome.PASSED and not self._partial
        return failed or part.outcome is Outcome.INFRA_ERROR

    async def _case(self, case: JudgedCase) -> Part:
        session, program, limits = self._session, self._program, self._limits
        if case.stdout is not None and isinstance(self._problem.checker, OURS):
            largest = max(map(most_output, (case.stdout, *case.outputs.values())))
            limits = replace(limits, output_limit=min(limits.output_limit, largest))
        if self._problem.interactor is None:
            return await self._judged(case, await execute(session, program, case.given, limits))
        files = {"input.txt": case.given.stdin, "answer.txt": case.stdout or b""}
        dialogue = await converse(session, program, self._problem.interactor, files, limits)
        mark = dialogue.mark or Mark(0.0, "the interactor made no decision")
        return self._part(case, dialogue.ran, mark)

    async def _judged(self, case: JudgedCase, ran: ProgramRun) -> Part:
        mark: Mark | Verdict = Mark(0.0)
        if ran.verdict is None:
            mark = await self._checked(case, ran)
        return self._part(case, ran, mark)

    async def _checked(self, case: JudgedCase, ran: ProgramRun) -> Mark | Verdict:
        assert ran.result is not None
        written = [(ran.outputs[name], expected) for name, expected in case.outputs.items()]
        if case.stdout is not None:
            written.insert(0, (ran.result.stdout_bytes, case.stdout))
        for number, (output, expected) in enumerate(written):
            # The task's checker is for stdout or for the only file.
            its = number == 0 and (case.stdout is not None or len(written) == 1)
            checker = self._problem.checker if its else LinesChecker()
            mark = await self._decide(checker, Answer(case.given.stdin, output, expected))
            if isinstance(mark, Verdict) or mark.score < 1:
                return mark
        return Mark(1.0)

    async def _decide(self, checker: HostChecker | JudgeProgram, answer: Answer) -> Mark | Verdict:
        if isinstance(checker, JudgeProgram):
            return await check(self._session, checker, answer, self._limits)
        small = len(answer.output) + len(answer.expected) <= _MOST_AT_ONCE
        if small and isinstance(checker, OURS):
            return checker.mark(answer)
        try:
            return await anyio.to_thread.run_sync(checker.mark, answer)
        except TaskError as error:
            return masked(f"the task is at fault: {error}")
        except OSError as error:  # this machine has no room for the checker's process
            return masked(f"the checker could not be run: {error}")

    def _part(self, case: JudgedCase, ran: ProgramRun, mark: Mark | Verdict) -> Part:
        verdict = ran.verdict if ran.verdict is not None else mark
        usage = ran.result.usage if ran.result else CommandUsage()
        limit = self._limits.memory_mb if self._problem.memory_limit_mb else None
        if limit and usage.peak_memory_bytes and usage.peak_memory_bytes > limit << 20:
            verdict = failed(f"used more than {limit} MiB", Outcome.OOM)
        if isinstance(verdict, Verdict):
            outcome = verdict.outcome
        else:
            outcome = Outcome.PASSED if verdict.score == 1 else Outcome.FAILED
        return Part(
            case.name,
            outcome,
            verdict.score,
            case.weight,
            verdict.detail,
            usage.processor_seconds,
            ran.result.duration if ran.result else None,
            usage.peak_memory_bytes,
            len(ran.result.stdout_bytes) if ran.result else None,
        )


def _is_short(processor_seconds: float | None, wall_seconds: float | None) -> bool:
    """Whether a run was so short that others may wait for it."""
    if processor_seconds is None or wall_seconds is None:
        return False
    return processor_seconds < _SHORT and wall_seconds < _SHORT_ELAPSED


async def _execute_each(
    session: Session, program: Compiled, given: Sequence[ProgramInput], limits: Limits
) -> list[ProcessResult]:
    """Run a program on each input, and return the results of the first runs.

    A run has no result if it may have exceeded a limit, was killed, or failed by the infrastructure. Nor have the
    runs after it. `execute` repeats such a run by itself, and decides what it means.
    """
    size = len(program.content) + sum(len(each.stdin) for each in given)
    if len(given) < 2 or not limits.resets(session) or size > _MOST_BYTES:
        return []
    if any(each.files or each.outputs for each in given):
        return []
    series = CommandSeries(
        tuple(CommandInput(each.stdin, each.args) for each in given),
        min(limits.timeout, _RUN),
        _SERIES,
        output_bytes=min(limits.output_limit, _OUTPUT_BYTES),
    )

    async def attempt(sandbox: Sandbox, alone: bool) -> list[ProcessResult]:
        if alone:  # this sandbox is not reset
            return []
        await sandbox.start()
        try:
            async with asyncio.timeout(_PATIENCE):
                results = await sandbox.exec_each(
                    program.language.run,
                    series,
                    env=program.language.env,
                    setup=setup(program, limits),
                )
                return results if await _within(sandbox, results, limits) else []
        except (SandboxError, TimeoutError):
            return []  # `execute` meets the cause again, if it lasts

    once = dataclasses.replace(limits, retries=0)
    results = await retried(session, once, attempt, forks_python=False)
    if isinstance(results, Verdict):
        return []
    ended = (index for index, result in enumerate(results) if not _is_plain(result))
    return results[: next(ended, len(results))]


async def _within(sandbox: Sandbox, results: Sequence[ProcessResult], limits: Limits) -> bool:
    """Return whether every run certainly stayed below the limit of CPU time; False if the backend counts none.

    CPU time that only the backend counts, such as that of children, is charged to the longest run.
    """
    if sum(result.duration for result in results) * processors(sandbox) < limits.timeout:
        return True
    usage = await sandbox.usage()
    if usage is None or usage.processor_seconds is None:
        return False
    own = [result.usage.processor_seconds or 0.0 for result in results]
    return max(own, default=0.0) + usage.processor_seconds - sum(own) < limits.timeout


def _is_plain(result: ProcessResult) -> bool:
    """Whether the program ended by itself, so that its end needs no second look."""
    return result.ending in (Ending.EXITED, Ending.SIGNAL) and result.returncode != KILLED
