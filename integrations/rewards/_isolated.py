"""One run of one program in a pristine sandbox of its own, retried while that is not its fault."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandboxkit import (
    CommandTimeoutError,
    ConfigurationError,
    ProcessResult,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict, failed, masked

_FIRST_PAUSE = 0.2
_KILLED = 137  # 128 + SIGKILL


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use. Each has a sandbox of its own, without network."""

    timeout: float = 10.0
    """Seconds from the start of the program; waiting for a sandbox does not count."""
    output_limit: int = 1024 * 1024
    """Bytes of output, or of the value that a function returned; more is not graded."""
    memory_mb: int | None = None
    """For the whole sandbox; None for the provider's own limit."""
    retries: int = 2
    """How often a run is tried again after a failure of the infrastructure."""
    deadline: float = 900.0
    """Seconds for one run with all its retries and its waiting for a sandbox, also for room in
    the session; past them the infrastructure has failed."""
    python: str = "python3"

    def __post_init__(self) -> None:
        if self.timeout <= 0 or self.output_limit <= 0 or self.retries < 0:
            raise ConfigurationError(
                f"{self!r}: timeout and output_limit are positive, retries >= 0"
            )
        if self.deadline <= self.timeout:
            raise ConfigurationError(
                f"deadline={self.deadline!r} is not above timeout={self.timeout!r}; it also "
                "covers waiting for a sandbox"
            )


async def run(
    session: Session,
    argv: Sequence[str],
    limits: Limits,
    *,
    stdin: bytes = b"",
    files: Mapping[str, bytes] | None = None,
) -> ProcessResult | Verdict:
    """Run a program to its end; a Verdict where it came to none that can be graded."""
    try:
        async with asyncio.timeout(limits.deadline):
            return await _run(session, argv, limits, stdin, files or {})
    except TimeoutError:
        return masked(f"no answer within deadline={limits.deadline:g} s")


async def _run(
    session: Session,
    argv: Sequence[str],
    limits: Limits,
    stdin: bytes,
    files: Mapping[str, bytes],
) -> ProcessResult | Verdict:
    for attempt in range(limits.retries + 1):
        try:
            result = await session.run(
                argv,
                stdin=stdin,
                timeout=limits.timeout,
                output_limit=limits.output_limit,
                command=None,
                files=files,
                network="none",
                profile="strict",
                memory_mb=limits.memory_mb,
                lifetime=limits.timeout + 600,
                detach=False,
            )
            return _judged(result, limits)
        except CommandTimeoutError:
            return Verdict(Outcome.TIMEOUT, 0.0, "policy", f"ran past {limits.timeout:g} s")
        except ConfigurationError:
            raise
        except SandboxError as error:
            again = error.retryable or isinstance(
                error, (SandboxTerminatedError, SandboxNotFoundError)
            )
            if not again or attempt == limits.retries:
                return masked(f"{type(error).__name__} in attempt {attempt + 1}: {error}")
            pause = _FIRST_PAUSE * 2**attempt
            if isinstance(error, ProviderUnavailableError):
                pause = max(pause, error.retry_after or 0.0)
            await asyncio.sleep(pause)
    raise AssertionError("unreachable")


def _judged(result: ProcessResult, limits: Limits) -> ProcessResult | Verdict:
    if result.truncated:
        return Verdict(
            Outcome.TRUNCATED, 0.0, "policy", f"more than {limits.output_limit} bytes of output"
        )
    if result.returncode == _KILLED:
        return Verdict(
            Outcome.KILLED, 0.0, "policy", "killed by signal 9, as the memory limit does"
        )
    return result


def ended(result: ProcessResult) -> Verdict:
    """The verdict on a program that exited without having answered."""
    return failed(f"exited with status {result.returncode} and no answer")
