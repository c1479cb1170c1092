"""Runs programs for `/v1/run` and `/run_code` with the runner of their language."""

import dataclasses

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.rewards import Limits, Outcome, Verdict, run_program
from sandboxkit.integrations.rewards.programs import (
    ProgramInput,
    SourceRun,
    language_of,
    run_source,
)
from sandboxkit.integrations.serve._models import CompilerResult, RunRequest, RunResult

_PYTHON = "python"


def check(body: RunRequest, deadline: float) -> None:
    """Raise ConfigurationError for an unknown language, and for a timeout not below `deadline`."""
    timeouts = {"timeout": body.timeout}
    if language_of(body.language).compile:
        timeouts["compile_timeout"] = body.compile_timeout
    for name, seconds in timeouts.items():
        if seconds >= deadline:
            raise ConfigurationError(
                f"{name}={seconds:g} is not below the service's deadline of {deadline:g} s"
            )


async def ran(session: Session, body: RunRequest, limits: Limits) -> RunResult | Verdict:
    """Run a program within `limits`; return the Verdict INFRA_ERROR if the infrastructure failed.

    Raises ConfigurationError if sandboxes lack the language's compiler or run time.
    """
    stdin = body.stdin.encode()
    if language_of(body.language).name == _PYTHON:
        ended = await run_program(session, body.code, stdin=stdin, files=body.files, limits=limits)
        if isinstance(ended, Verdict) and ended.outcome is Outcome.INFRA_ERROR:
            return ended
        return RunResult.of(ended)
    compiling = dataclasses.replace(limits, timeout=body.compile_timeout, wall=body.compile_timeout)
    given = ProgramInput(stdin, files=body.files)
    run = await run_source(session, body.language, body.code, given, limits, compiling)
    if run.verdict is not None and run.verdict.outcome is Outcome.INFRA_ERROR:
        return run.verdict
    return _result(run).model_copy(update={"compiler": _compiler(run)})


def _result(run: SourceRun) -> RunResult:
    result, verdict = run.result, run.verdict
    if verdict is None or (verdict.outcome is Outcome.RUNTIME_ERROR and result is not None):
        assert result is not None
        return RunResult.of(result)
    if verdict.outcome is Outcome.RUNTIME_ERROR:  # ended by SIGKILL, in another sandbox as well
        return RunResult(outcome="killed", returncode=None, detail=verdict.detail)
    return RunResult.of(verdict)


def _compiler(run: SourceRun) -> CompilerResult | None:
    result, exceeded = run.compiler, run.compiler_exceeded
    if result is not None:
        return CompilerResult(
            returncode=result.returncode,
            stdout=result.stdout,
            stderr=result.stderr,
            seconds=result.duration,
        )
    if exceeded is None or run.verdict is None:
        return None
    return CompilerResult(timed_out=exceeded is Outcome.TIMEOUT, stderr=run.verdict.detail)
