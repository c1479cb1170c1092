"""Whose time a program ran out of: its own on a processor, or what others took from it."""

import asyncio
import math
import time
from collections.abc import Sequence
from typing import TypeVar

from sandboxkit import (
    Ending,
    Process,
    ProcessResult,
    ProviderUnavailableError,
    Sandbox,
    SandboxError,
    Usage,
)
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict

T = TypeVar("T")

_KILLED = 137  # 128 + SIGKILL
_OUT_OF_TIME = 152  # 128 + SIGXCPU, which the kernel sends at RLIMIT_CPU
_POLL = 1.0
_PATIENCE = 120.0
"""Seconds for an answer on usage. A submission with as many busy processes as it may have delays
it by seconds; a sandbox that stands still never gives one."""
_MOST_PROCESSORS = 64
"""A program that ran a shorter part of its timeout than this cannot have used all of it."""
_LIMITED = 'ulimit -S -t "$1" && ulimit -H -t "$2"; shift 2; exec "$@"'


def limited(argv: Sequence[str], limits: Limits) -> list[str]:
    """The command that runs `argv` with `limits.timeout` of processor time for each process.

    The kernel enforces it on any backend, and no load of others brings it nearer. A process that
    ignores the signal is killed a second later.
    """
    return ["/bin/sh", "-c", _LIMITED, "sh", *map(str, processor_seconds(limits)), *argv]


def processor_seconds(limits: Limits) -> tuple[int, int]:
    """The soft and the hard limit of one process, RLIMIT_CPU."""
    seconds = math.ceil(limits.timeout)
    return seconds, seconds + 1


async def watched(
    sandbox: Sandbox, process: Process, limits: Limits, *, before: Usage | None = None
) -> ProcessResult | Verdict:
    """Wait for a `limited` command that has no timeout; a Verdict where it cannot be graded.

    Call it as soon as the command has started. `before` is the sandbox's usage before the
    command, None for a fresh one: the usage of all that runs there counts. The command is being
    killed when this returns without its result or is cancelled. Raises errors of the
    infrastructure, to be tried again, also for a sandbox that stands still.
    """
    watch = Watch(sandbox, limits, before)
    answer = asyncio.wrap_future(process)
    try:
        result = await watch.within(answer)
        return await watch.judge(result) if isinstance(result, ProcessResult) else result
    finally:
        process.cancel()
        if not answer.cancel() and not answer.cancelled():
            answer.exception()  # asked for, or asyncio logs that nobody did


class Watch:
    """One command's time: what it used, and how long it did not run by its own doing."""

    def __init__(self, sandbox: Sandbox, limits: Limits, before: Usage | None) -> None:
        self._sandbox, self._limits = sandbox, limits
        self._used_before = (before and before.processor_seconds) or 0.0
        self._starved = (before and before.starved_seconds) or 0.0
        self._own = 0.0
        self._waited = 0.0
        """Seconds of waiting since usage was last asked for, whoever had the processors."""
        self._pause = limits.timeout

    async def within(self, answer: asyncio.Future[T]) -> T | Verdict:
        """Wait for the command's answer, as `watched` says; the time between two does not count.

        With a Verdict, or cancelled, the answer is still to come: it is the caller's to cancel.
        """
        while not answer.done():
            begun = time.monotonic()
            await asyncio.wait([answer], timeout=max(self._pause - self._waited, 0.0))
            self._waited += time.monotonic() - begun
            if self._waited >= self._pause and not answer.done():
                verdict = await self._look()
                if verdict is not None:
                    return verdict
        return answer.result()

    async def _look(self) -> Verdict | None:
        """The verdict on a command that still runs, None for none yet."""
        asked = time.monotonic()
        usage = await self._usage()
        delay = time.monotonic() - asked
        if self._used_up(usage):
            return _timeout(f"used its {self._limits.timeout:g} s of processor time")
        starved = (usage and usage.starved_seconds) or self._starved
        # Neither the time that others took counts nor that until the sandbox gave an answer.
        excused = max(delay, min(starved - self._starved, self._waited + delay))
        self._own += self._waited + delay - excused
        self._starved, self._waited = starved, 0.0
        left = self._limits.longest - self._own
        if left <= 0:
            return _timeout(f"neither ended nor used its time in {self._limits.longest:g} s")
        self._pause = left if usage is None else min(left, _POLL)
        return None

    async def judge(self, result: ProcessResult) -> ProcessResult | Verdict:
        """The verdict on a command that ended, or its result."""
        limits = self._limits
        if result.truncated:
            detail = f"more than {limits.output_limit} bytes of output"
            return Verdict(Outcome.TRUNCATED, 0.0, "policy", detail)
        if result.returncode == _OUT_OF_TIME:
            return _timeout(f"used its {limits.timeout:g} s of processor time")
        if result.duration * _MOST_PROCESSORS >= limits.timeout:
            try:
                usage = await self._usage()
            except SandboxError:
                # Its end is known, and a child that it left behind must not undo that by
                # taking the sandbox down.
                usage = None
            killed_late = result.returncode == _KILLED and result.duration >= limits.timeout
            if self._used_up(usage) or (usage is None and killed_late):
                return _timeout(f"used its {limits.timeout:g} s of processor time")
        if result.ending is Ending.OUT_OF_MEMORY:
            detail = "used more memory than its sandbox has"
            return Verdict(Outcome.OOM, 0.0, "policy", detail)
        if result.returncode == _KILLED:
            detail = "killed by signal 9"
            if result.ending is None:
                detail += ", as the memory limit does"
            return Verdict(Outcome.KILLED, 0.0, "policy", detail)
        return result

    async def _usage(self) -> Usage | None:
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._sandbox.usage()
        except TimeoutError as error:
            raise ProviderUnavailableError(
                f"the sandbox gave no sign of life for {_PATIENCE:g} s",
                provider=self._sandbox.provider_name,
                sandbox_id=self._sandbox.id,
            ) from error

    def _used_up(self, usage: Usage | None) -> bool:
        if usage is None or usage.processor_seconds is None:
            return False
        return usage.processor_seconds - self._used_before >= self._limits.timeout


def _timeout(detail: str) -> Verdict:
    return Verdict(Outcome.TIMEOUT, 0.0, "policy", detail)
