"""Runs a compiled program on several inputs in one sandbox, which the agent resets between two runs."""

import asyncio
import dataclasses
from collections.abc import Sequence

from sandboxkit import Ending, Operation, ProcessResult, Sandbox, SandboxError, Session
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._run import KILLED, processors, retried
from sandboxkit.integrations.rewards._verdict import Verdict
from sandboxkit.integrations.rewards.programs._compile import Compiled
from sandboxkit.integrations.rewards.programs._execute import ProgramInput, setup
from sandboxkit.types import CommandInput, CommandSeries

_RUN, _SERIES = 2.0, 5.0
"""The longest run (s) in a series, and the elapsed time (s) after which no run of it starts. A longer run is ended,
and repeated by itself. On a busy machine short programs take long, and a series still costs least."""
_MOST_BYTES = 3 << 20
"""The largest program and inputs, in bytes together, that are sent along with the series."""
_OUTPUT_BYTES = 256 << 10
_PATIENCE = 60.0
"""How long (s) a series may take beyond its own limits; the resets take longer on a busy machine."""


async def execute_each(
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
    results = await Operation(retried(session, once, attempt, forks_python=False))
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
