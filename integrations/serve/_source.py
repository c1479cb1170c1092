"""Programs of `/v1/run` and `/run_code`: which runner a language has, and its end as an answer."""

import dataclasses

from sandboxkit import ConfigurationError, ProcessResult, Session
from sandboxkit.integrations.rewards import Limits, Outcome, Verdict, run_program
from sandboxkit.integrations.rewards.programs import language_of
from sandboxkit.integrations.rewards.programs._compile import Build
from sandboxkit.integrations.rewards.programs._execute import ProgramInput
from sandboxkit.integrations.rewards.programs._run_source import run_source
from sandboxkit.integrations.serve._models import CompilerResult, RunRequest, RunResult

_ENDED = (Outcome.PASSED, Outcome.RUNTIME_ERROR)
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
    """Run a program within `limits`; return the Verdict INFRA_ERROR if nothing is known of it.

    Raises ConfigurationError where sandboxes lack the language's toolchain.
    """
    stdin = body.stdin.encode()
    if language_of(body.language).name == _PYTHON:
        ended = await run_program(session, body.code, stdin=stdin, files=body.files, limits=limits)
        return _unknown(ended) or RunResult.of(ended)
    compiling = dataclasses.replace(limits, timeout=body.compile_timeout, wall=body.compile_timeout)
    given = ProgramInput(stdin, files=body.files)
    source = await run_source(session, body.language, body.code, given, limits, compiling)
    run = source.ran
    answer = source.build.answer if run is None else run.verdict or run.result
    assert isinstance(answer, Verdict | ProcessResult)
    if lost := _unknown(answer):
        return lost
    result = _compile_error(answer) if run is None else _result(answer, run.result)
    return result.model_copy(update={"compiler": _compiler(source.build)})


def _unknown(ended: ProcessResult | Verdict) -> Verdict | None:
    lost = isinstance(ended, Verdict) and ended.outcome is Outcome.INFRA_ERROR
    return ended if isinstance(ended, Verdict) and lost else None


def _result(ended: ProcessResult | Verdict, result: ProcessResult | None) -> RunResult:
    if result is not None and (isinstance(ended, ProcessResult) or ended.outcome in _ENDED):
        return RunResult.of(result)
    if isinstance(ended, Verdict) and ended.outcome is Outcome.RUNTIME_ERROR:
        return RunResult(outcome="killed", returncode=None, detail=ended.detail)
    return RunResult.of(ended)


def _compile_error(ended: ProcessResult | Verdict) -> RunResult:
    assert isinstance(ended, Verdict)
    return RunResult(outcome="compile_error", returncode=None, detail=ended.detail)


def _compiler(build: Build) -> CompilerResult | None:
    result = build.result
    if result is not None:
        return CompilerResult(
            returncode=result.returncode,
            stdout=result.stdout,
            stderr=result.stderr,
            seconds=result.duration,
        )
    if build.exceeded is None:
        return None
    assert isinstance(build.answer, Verdict)
    late = build.exceeded is Outcome.TIMEOUT
    return CompilerResult(timed_out=late, stderr=build.answer.detail)
