"""One run of one program in a pristine sandbox of its own, retried while that is not its fault."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from sandboxkit import (
    ConfigurationError,
    ProcessResult,
    ProviderUnavailableError,
    Sandbox,
    SandboxError,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.integrations.rewards._boundary import Phase, may_pass, verdict_of
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._verdict import Verdict, failed, masked
from sandboxkit.integrations.rewards._watched import (
    Watch,
    limited,
    processor_seconds,
    watched,
)

__all__ = [
    "Limits",
    "Watch",
    "ended",
    "limited",
    "pristine",
    "processor_seconds",
    "retried",
    "run",
    "watched",
]

_FIRST_PAUSE = 0.2
_SPARE_LIFETIME = 60.0

T = TypeVar("T")


async def run(
    session: Session,
    argv: Sequence[str],
    limits: Limits,
    *,
    stdin: bytes = b"",
    files: Mapping[str, bytes] | None = None,
) -> ProcessResult | Verdict:
    """Run a program to its end; a Verdict where it came to none that can be graded.

    `argv` is `limited`, or sees to its `processor_seconds` itself.
    """

    async def attempt() -> ProcessResult | Verdict:
        sandbox = pristine(session, limits, files)
        try:
            await sandbox.start()
            process = sandbox.exec(argv, stdin=stdin, output_limit=limits.output_limit)
            return await watched(sandbox, process, limits)
        finally:
            # Nobody waits for the deletion; one that fails is tried again by session.close().
            sandbox.stop()

    return await retried(limits, attempt)


def pristine(session: Session, limits: Limits, files: Mapping[str, bytes] | None = None) -> Sandbox:
    """A sandbox for one submission."""
    return session.sandbox(
        command=None,
        files=files or {},
        network="none",
        profile="strict",
        memory_mb=limits.memory_mb,
        lifetime=limits.deadline + _SPARE_LIFETIME,
        detach=False,
    )


async def retried(limits: Limits, attempt: Callable[[], Awaitable[T]]) -> T | Verdict:
    """What `attempt` returns, tried again after failures of the infrastructure.

    Past `limits.retries` or `limits.deadline` it is a Verdict, INFRA_ERROR. Raises
    ConfigurationError.
    """
    limit = asyncio.timeout(limits.deadline)
    try:
        async with limit:
            return await _retried(limits.retries, attempt)
    except TimeoutError:
        if not limit.expired():
            raise
        return masked(f"no answer within deadline={limits.deadline:g} s")


async def _retried(retries: int, attempt: Callable[[], Awaitable[T]]) -> T | Verdict:
    for number in range(retries + 1):
        try:
            return await attempt()
        except ConfigurationError:
            raise
        except SandboxError as error:
            if number == retries or not may_pass(error):
                oom = isinstance(error, SandboxTerminatedError) and error.out_of_memory
                phase = Phase.GRADED if oom else Phase.STARTED
                return verdict_of(error, phase, trust="shared")
            pause = _FIRST_PAUSE * 2**number
            if isinstance(error, ProviderUnavailableError):
                pause = max(pause, error.retry_after or 0.0)
            await asyncio.sleep(pause)
    raise AssertionError("unreachable")


def ended(result: ProcessResult) -> Verdict:
    """The verdict on a program that exited without having answered."""
    return failed(f"exited with status {result.returncode} and no answer")
