"""One run of one program in a pristine sandbox of its own, retried while that is not its fault."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from sandboxkit import (
    CommandStartError,
    ConfigurationError,
    Operation,
    Process,
    ProcessResult,
    ProviderUnavailableError,
    Sandbox,
    SandboxError,
    Session,
)
from sandboxkit.integrations.rewards import _programs
from sandboxkit.integrations.rewards._boundary import Phase, brought_on, may_pass, verdict_of
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._programs import Program
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
    "begin",
    "ended",
    "limited",
    "pristine",
    "processor_seconds",
    "retried",
    "run",
    "run_options",
    "watched",
]

_FIRST_PAUSE = 0.2
_SPARE_LIFETIME = 60.0

T = TypeVar("T")


async def run(
    session: Session,
    program: Program,
    limits: Limits,
    *,
    stdin: bytes = b"",
    files: Mapping[str, bytes] | None = None,
) -> ProcessResult | Verdict:
    """Run a program to its end; a Verdict where it came to none that can be graded.

    It is `limited`, or sees to its `processor_seconds` itself.
    """

    async def attempt() -> ProcessResult | Verdict:
        sandbox = pristine(session, limits, files)
        try:
            await sandbox.start()
            process = begin(sandbox, program, stdin=stdin, output_limit=limits.output_limit)
            return await watched(sandbox, process, limits)
        finally:
            # Nobody waits for its end; one that fails is tried again by session.close().
            sandbox.stop()

    # All of it on the thread of the sandboxes: else each step of it would go there and back.
    return await Operation(retried(session, limits, attempt))


def begin(sandbox: Sandbox, program: Program, *, stdin: bytes | bool, output_limit: int) -> Process:
    """Start a program: in a fork of the sandbox's interpreter, if it has one."""
    if sandbox.spec.interpreter is not None and program.code is not None:
        code, rest = program.fork(stdin)
        return sandbox.run_python(code, stdin=rest, output_limit=output_limit)
    return sandbox.exec(program.argv, stdin=stdin, output_limit=output_limit)


def pristine(
    session: Session,
    limits: Limits,
    files: Mapping[str, bytes] | None = None,
    *,
    fresh: bool = False,
) -> Sandbox:
    """A sandbox for one submission, in which nothing of another is; with `fresh` nothing ever was."""
    options = run_options(limits, resets=limits.resets(session))
    if fresh:
        options["reuse"] = "never"
    options["files"] = files or {}
    return session.sandbox(**options)


# Any: the fields of SandboxSpec.
def run_options(limits: Limits, *, resets: bool) -> dict[str, Any]:
    """The options of a submission's sandbox, in which runs may take turns."""
    return {
        "command": None,
        "files": {},
        "network": "none",
        "profile": "strict",
        "memory_mb": limits.memory_mb,
        "lifetime": limits.deadline + _SPARE_LIFETIME,
        "detach": False,
        "reuse": "reset" if resets else "never",
        "interpreter": _programs.interpreter(limits.python) if resets else None,
    }


async def retried(
    session: Session, limits: Limits, attempt: Callable[[], Awaitable[T]]
) -> T | Verdict:
    """What `attempt` returns, tried again after failures of the infrastructure.

    Past `limits.retries` or `limits.deadline` it is a Verdict, INFRA_ERROR. Raises
    ConfigurationError.
    """
    limit = asyncio.timeout(limits.deadline)
    try:
        async with limit:
            return await _retried(session, limits, attempt)
    except TimeoutError:
        if not limit.expired():
            raise
        return masked(f"no answer within deadline={limits.deadline:g} s")


async def _retried(
    session: Session, limits: Limits, attempt: Callable[[], Awaitable[T]]
) -> T | Verdict:
    for number in range(limits.retries + 1):
        try:
            return await attempt()
        except ConfigurationError:
            raise
        except SandboxError as error:
            if isinstance(error, CommandStartError) and not error.retryable:
                if await _starts(session, limits):
                    # Only what ran in there can have said so, on a backend that must ask it.
                    return failed(f"it claims not to have been started: {error}")
                raise ConfigurationError(
                    f"{error}; grading needs it in the session's image, or Limits(python=...)"
                ) from error
            if number == limits.retries or not may_pass(error):
                phase = Phase.GRADED if brought_on(error) else Phase.STARTED
                return verdict_of(error, phase, trust="shared")
            pause = _FIRST_PAUSE * 2**number
            if isinstance(error, ProviderUnavailableError):
                pause = max(pause, error.retry_after or 0.0)
            await asyncio.sleep(pause)
    raise AssertionError("unreachable")


async def _starts(session: Session, limits: Limits) -> bool:
    """Whether Python can be started where nothing of a submission is."""
    sandbox = pristine(session, limits, fresh=True)
    try:
        await sandbox.start()
        await begin(sandbox, Program((limits.python, "-c", ""), ""), stdin=b"", output_limit=1)
    except CommandStartError:
        return False
    finally:
        sandbox.stop()
    return True


def ended(result: ProcessResult) -> Verdict:
    """The verdict on a program that exited without having answered."""
    return failed(f"exited with status {result.returncode} and no answer")
