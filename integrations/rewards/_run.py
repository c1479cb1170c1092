"""One run of one program in a pristine sandbox: the pool, start, time limits and retries."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from sandboxkit import (
    CommandStartError,
    ConfigurationError,
    Ending,
    Operation,
    Process,
    ProcessResult,
    ProviderUnavailableError,
    Sandbox,
    SandboxError,
    Session,
    Usage,
)
from sandboxkit.integrations._retries import retry
from sandboxkit.integrations._service import DeadlineError, service_time
from sandboxkit.integrations.rewards import _programs
from sandboxkit.integrations.rewards._boundary import (
    Phase,
    caused_by_command,
    is_transient,
    unproven,
    verdict_of,
)
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._programs import SandboxProgram
from sandboxkit.integrations.rewards._verdict import Grader, Outcome, Verdict, failed, masked
from sandboxkit.provider import Provider

T = TypeVar("T")

_SOLUTION = "/workspace/solution.py"
_SPARE_LIFETIME = 60.0
KILLED = 137  # 128 + SIGKILL
OUT_OF_TIME = 152  # 128 + SIGXCPU, which the kernel sends at RLIMIT_CPU
_POLL = 1.0
_PATIENCE = 120.0
"""Time limit in seconds for a usage request. A submission with the maximum number of busy processes
delays the answer by seconds; a frozen sandbox never answers."""
_MOST_PROCESSORS = 64
"""Assumed maximum of CPUs of another machine: see `processors`."""
_EACH_PROCESSOR = 2
"""Sandboxes of a pool per CPU: while one runs a job, another is reset or its result is compared."""
_HERE = os.cpu_count() or _MOST_PROCESSORS


async def run(
    session: Session,
    program: SandboxProgram,
    limits: Limits,
    *,
    stdin: bytes = b"",
    files: Mapping[str, bytes] | None = None,
) -> ProcessResult | Verdict:
    """Run a program to its end and return its result, or a Verdict if the run cannot be graded.

    The program must be `limited` or enforce its `processor_seconds` itself.
    """

    async def attempt(sandbox: Sandbox, _: bool) -> ProcessResult | Verdict:
        await sandbox.start()
        process = begin(sandbox, program, stdin=stdin, output_limit=limits.output_limit)
        return await watched(sandbox, process, limits)

    return await retried(session, limits, attempt, files)


def run_program(
    session: Session,
    code: str,
    *,
    stdin: bytes = b"",
    files: Mapping[str, bytes] | None = None,
    limits: Limits | None = None,
) -> Operation[ProcessResult | Verdict]:
    """Run a Python program once, in a pristine sandbox, and return its result.

    Returns a Verdict if there is no result: the program exceeded a limit or was killed, or the
    infrastructure failed after its retries (INFRA_ERROR). `files` maps paths in the sandbox to the
    contents of additional files. Raises ConfigurationError, for example if the sandbox has no Python.
    """
    limits = limits or Limits()
    program = _programs.file_program(_SOLUTION, limits)
    files = {**(files or {}), _SOLUTION: code.encode(errors="surrogatepass")}
    return Operation(run(session, program, limits, stdin=stdin, files=files))


def begin(
    sandbox: Sandbox, program: SandboxProgram, *, stdin: bytes | bool, output_limit: int
) -> Process:
    """Start a program, in a fork of the sandbox's interpreter if there is one."""
    if sandbox.spec.interpreter is not None and program.code is not None:
        return sandbox.run_python(program.code, stdin=stdin, output_limit=output_limit)
    return sandbox.exec(program.argv, stdin=stdin, output_limit=output_limit, setup=program.setup)


# Any: the fields of SandboxSpec.
def run_options(limits: Limits, *, resets: bool, forks_python: bool = True) -> dict[str, Any]:
    """Return the options of a submission's sandbox; with `resets` it is reused for many runs.

    A sandbox that is reused has an interpreter, unless `forks_python` is False.
    """
    return {
        "command": None,
        "files": {},
        "network": "none",
        "profile": "strict",
        "memory_mb": limits.memory_mb,
        "lifetime": limits.deadline + _SPARE_LIFETIME,
        "detach": False,
        "reuse": "reset" if resets else "never",
        "interpreter": _programs.interpreter(limits.python) if resets and forks_python else None,
    }


def grading_session(
    grader: Grader,
    provider: str | Provider | None = None,
    *,
    max_concurrency: int | None = None,
    pool: int | None = None,
    **options: Any,  # SandboxSpec's, as Session takes them
) -> Session:
    """Return a session with a warm pool of the sandboxes that the grader's `limits` describe.

    The default size of `pool` is `max_concurrency`, or else two sandboxes per CPU of this machine;
    0 means no pool. The default of `max_concurrency` is the size of the pool, so that the session
    creates no further sandboxes. There is no pool by default if `limits.reuse` is "never", if the
    grader has no `limits`, or if the provider cannot reset a sandbox. Raises ConfigurationError for
    invalid options.
    """
    limits = getattr(grader, "limits", None)
    if not isinstance(limits, Limits) or limits.reuse == "never":
        return Session(provider, max_concurrency=max_concurrency, pool=pool or None, **options)
    if pool is None and (limits.reuse == "reset" or _can_reset(provider)):
        pool = max_concurrency or _EACH_PROCESSOR * (os.cpu_count() or 1)
    if not pool:
        return Session(provider, max_concurrency=max_concurrency, **options)
    forks_python = getattr(grader, "forks_python", True)
    options.update(run_options(limits, resets=True, forks_python=forks_python))
    return Session(provider, max_concurrency=max_concurrency or pool, pool=pool, **options)


def _can_reset(provider: str | Provider | None) -> bool:
    return not isinstance(provider, Provider) or provider.has("reset")


async def retried(
    session: Session,
    limits: Limits,
    attempt: Callable[[Sandbox, bool], Awaitable[T]],
    files: Mapping[str, bytes] | None = None,
    *,
    forks_python: bool = True,
    counted: bool = True,
) -> T | Verdict:
    """Return the result of `attempt(sandbox, alone)`, retried after infrastructure failures.

    Each attempt gets a pristine sandbox, not yet started, that is stopped afterwards. If the run is
    killed or a program in the sandbox ends the sandbox, the cause is unproven: the run is repeated
    once, alone in a fresh sandbox, and a second such end is attributed to the submission. After
    `limits.retries` retries or `limits.deadline` seconds the result is a Verdict INFRA_ERROR. Raises
    ConfigurationError, for example if the sandbox has no Python. With `forks_python` False the sandbox
    needs only a shell. With `counted` False it is none of the session's pool or limits.
    """

    probe = (limits.python, "-c", "") if forks_python else ("/bin/sh", "-c", "")
    sandbox: Sandbox | None = None
    alone = False

    def new(alone: bool) -> Sandbox:
        # Alone, it is not reset, and has no interpreter whose end could be mistaken for that of a run.
        resets = limits.resets(session) and counted and not alone
        options = run_options(limits, resets=resets, forks_python=forks_python)
        options["files"] = files or {}
        return session.sandbox(counted=counted, **options)

    def queued() -> float | None:
        return sandbox.queued if sandbox else None

    async def once() -> T:
        nonlocal sandbox
        sandbox = new(alone)
        try:
            return await attempt(sandbox, alone)
        finally:
            # Not awaited: session.close() retries a stop that fails.
            sandbox.stop()

    def again(error: Exception, failures: int) -> bool:
        return failures <= limits.retries and is_transient(error) and not caused_by_command(error)

    while True:
        sandbox = None
        try:
            async with service_time(limits.deadline, queued):
                try:
                    answer = await retry(once, again)
                    killed = isinstance(answer, Verdict) and answer.outcome is Outcome.KILLED
                    if alone or not killed:
                        return answer
                except SandboxError as error:
                    if alone or not unproven(error):
                        return await _lost(error, new, probe)
        except DeadlineError as error:
            return masked(str(error))
        alone = True


async def _lost(
    error: SandboxError, new: Callable[[bool], Sandbox], probe: tuple[str, ...]
) -> Verdict:
    """Return the verdict on an error that ended the last attempt. Raises ConfigurationError."""
    if isinstance(error, CommandStartError) and not error.retryable:
        if await _starts(new(True), probe):
            # The program does start elsewhere, so the submission must have forged the error, on a
            # backend that reports the start through the sandbox.
            return failed(f"it claims not to have been started: {error}")
        raise ConfigurationError(
            f"{error}; grading needs it in the session's image, or Limits(python=...)"
        ) from error
    phase = Phase.GRADED if caused_by_command(error) else Phase.STARTED
    return verdict_of(error, phase, trust="shared")


async def _starts(sandbox: Sandbox, probe: tuple[str, ...]) -> bool:
    """Whether a program starts in a sandbox that holds no submission; stops the sandbox."""
    try:
        await sandbox.start()
        await sandbox.exec(probe, output_limit=1)
    except CommandStartError:
        return False
    finally:
        sandbox.stop()
    return True


def ended(result: ProcessResult) -> Verdict:
    """Return the verdict for a program that exited without an answer."""
    return failed(f"exited with status {result.returncode} and no answer")


async def watched(
    sandbox: Sandbox,
    process: Process,
    limits: Limits,
    *,
    before: Usage | None = None,
    flooded: bool | None = None,
) -> ProcessResult | Verdict:
    """Wait for a `limited` command without a timeout; return a Verdict if it cannot be graded.

    Call this as soon as the command has started. `before` is the sandbox's usage before the command,
    None for a fresh sandbox; the usage of everything in the sandbox counts. `flooded` is as for
    `RunMeter.judge`. If this returns a Verdict or is cancelled, it also kills the command, without
    waiting. Raises infrastructure errors for the caller to retry, among them ProviderUnavailableError
    for a frozen sandbox.
    """
    watch = RunMeter(sandbox, limits, before)
    answer = asyncio.wrap_future(process)
    try:
        result = await watch.within(answer)
        return result if isinstance(result, Verdict) else await watch.judge(result, flooded=flooded)
    finally:
        process.cancel()
        abandon(answer)


async def kill(process: Process) -> None:
    """Kill a process if it still runs, and wait until it has ended."""
    process.kill()
    ended = asyncio.wrap_future(process)
    await asyncio.wait([ended])
    abandon(ended)


# Any: the result is discarded.
def abandon(answer: asyncio.Future[Any]) -> None:
    """Cancel a future that has no waiter left, and retrieve its error so that asyncio does not log it."""
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())
    answer.cancel()


class RunMeter:
    """Measures one command's CPU time and elapsed time, and enforces its limits."""

    def __init__(self, sandbox: Sandbox, limits: Limits, before: Usage | None) -> None:
        self._sandbox, self._limits = sandbox, limits
        self._used_before = (before and before.processor_seconds) or 0.0
        self._starved = (before and before.starved_seconds) or 0.0
        self._own = 0.0
        self._waited = 0.0
        """Elapsed seconds since the last usage request, including time off the CPU."""
        self._pause = limits.timeout

    def restart(self) -> None:
        """Count the elapsed time from now on; CPU time goes on."""
        self._own, self._waited, self._pause = 0.0, 0.0, self._limits.timeout

    async def within(self, answer: asyncio.Future[T]) -> T | Verdict:
        """Wait for the command's answer, or return a Verdict when it exceeds a limit.

        Time between two calls does not count. After a Verdict or a cancellation `answer` is still
        pending, and the caller must cancel it.
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
        """Check a running command's usage; return a Verdict if it exceeded a limit."""
        asked = time.monotonic()
        usage = await self._usage()
        delay = time.monotonic() - asked
        if self._used_up(usage):
            return out_of_time(self._limits)
        starved = (usage and usage.starved_seconds) or self._starved
        # Neither time off the CPU counts nor the delay of the usage request.
        excused = max(delay, min(starved - self._starved, self._waited + delay))
        self._own += self._waited + delay - excused
        self._starved, self._waited = starved, 0.0
        left = self._limits.longest - self._own
        if left <= 0:
            text = f"neither ended nor used its time in {self._limits.longest:g} s"
            return failed(text, Outcome.TIMEOUT)
        self._pause = left if usage is None else min(left, _POLL)
        return None

    async def judge(
        self, result: ProcessResult, *, flooded: bool | None = None
    ) -> ProcessResult | Verdict:
        """Return the result of a finished command, or a Verdict if it exceeded a limit or was killed.

        `flooded` tells whether there was too much output; None: whether some was dropped.
        """
        limits = self._limits
        if result.truncated if flooded is None else flooded:
            return failed(f"more than {limits.output_limit} bytes of output", Outcome.TRUNCATED)
        if result.returncode == OUT_OF_TIME:
            return out_of_time(limits)
        if result.duration * processors(self._sandbox) >= limits.timeout:
            try:
                usage = await self._usage()
            except SandboxError:
                # The command's end is already known; a child that it left behind must not change
                # the outcome by taking the sandbox down.
                usage = None
            killed_late = result.returncode == KILLED and result.duration >= limits.timeout
            if self._used_up(usage) or (usage is None and killed_late):
                return out_of_time(limits)
        if result.ending is Ending.OUT_OF_MEMORY:
            return failed("used more memory than its sandbox has", Outcome.OOM)
        if result.returncode == KILLED:
            detail = "killed by signal 9"
            if result.ending is None:
                detail += ", as the memory limit does"
            return failed(detail, Outcome.KILLED)
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


def processors(sandbox: Sandbox) -> int:
    """Return how many CPUs a sandbox has at most.

    A program that ran for less than its CPU time limit divided by them cannot have used it up.
    """
    return _HERE if sandbox.provider_name == "local" else _MOST_PROCESSORS


def out_of_time(limits: Limits) -> Verdict:
    """Return the verdict of a run that used up its CPU time."""
    return failed(f"used its {limits.timeout:g} s of processor time", Outcome.TIMEOUT)
