"""Runs a compiled program once, in a pristine sandbox that holds only the program and its input."""

import asyncio
import dataclasses
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxkit import (
    CommandStartError,
    Ending,
    Process,
    ProcessResult,
    Sandbox,
    SandboxFileError,
    SandboxFileNotFoundError,
    Session,
)
from sandboxkit.integrations.rewards._boundary import shown
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._run import RunMeter, abandon, retried
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict, failed
from sandboxkit.integrations.rewards.programs._compile import FOLDER, Compiled
from sandboxkit.integrations.rewards.programs._rlimits import cannot_run, limited
from sandboxkit.integrations.rewards.programs._toolchain import NOT_FOUND, require
from sandboxkit.types import CommandFile, CommandSetup

_LOOK = 0.05
"""Interval in seconds between checks of whether a program's output exceeds the limit."""
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
_SIGNALS |= {13: "SIGPIPE", 25: "SIGXFSZ", 31: "SIGSYS"}


@dataclass(frozen=True, slots=True)
class ProgramInput:
    """The input of one run of a program, and the files that the run must write."""

    stdin: bytes = b""
    args: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Content of files to write before the run, by path; relative to the program's folder."""
    outputs: tuple[str, ...] = ()
    """Names of files in the program's folder that the run must write; they are read after it."""


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """How one run ended. `verdict` is None if the exit status is 0 and all files were written.

    `result` may be None if there is a verdict. `outputs` are the files that the run wrote, by name.
    """

    result: ProcessResult | None
    verdict: Verdict | None = None
    outputs: Mapping[str, bytes] = field(default_factory=dict)
    started: bool = True
    """False if the sandbox cannot run such a program."""


async def execute(
    session: Session, program: Compiled, given: ProgramInput, limits: Limits
) -> ProgramRun:
    """Run a program once; an infrastructure failure is retried.

    Raises ConfigurationError if sandboxes lack the language's commands.
    """

    async def attempt(sandbox: Sandbox, _: bool) -> ProgramRun | Verdict:
        await sandbox.start()  # the limits of elapsed time begin afterwards
        process = sandbox.exec(
            (*program.language.run, *given.args),
            stdin=given.stdin,
            output_limit=limits.output_limit,
            env=program.language.env,
            setup=setup(program, limits, given.files),
        )
        try:
            ran = await _watched(sandbox, process, limits)
        except CommandStartError as error:
            if not cannot_run(error):
                raise
            return ProgramRun(None, runtime_error(shown(error)), started=False)
        if ran.verdict is not None and ran.verdict.outcome is Outcome.KILLED:
            return ran.verdict  # `retried` then runs the program again, alone in a fresh sandbox
        return ran if ran.verdict else await _with_outputs(sandbox, ran, given, limits)

    answer = await retried(session, limits, attempt, forks_python=False)
    if isinstance(answer, ProgramRun):
        if not answer.started or (answer.result and answer.result.returncode in NOT_FOUND):
            lost = await require(session, program.language, limits)
            return ProgramRun(None, lost) if lost else answer
        return answer
    if answer.outcome is Outcome.KILLED:
        answer = runtime_error("ended by SIGKILL")
    return ProgramRun(None, answer)


def setup(
    program: Compiled, limits: Limits, files: Mapping[str, bytes] | None = None
) -> CommandSetup:
    """Return what a pristine sandbox needs for a run: the case's files, the program, and its limits.

    They are sent along with the command: a call of its own would cost more than to write the file.
    """
    given = tuple(
        CommandFile(posixpath.join(FOLDER, name), content)
        for name, content in {**program.files, **(files or {})}.items()
    )
    return limited(
        limits, files=(*given, CommandFile(program.path, program.content, 0o555, reused=True))
    )


async def _watched(sandbox: Sandbox, process: Process, limits: Limits) -> ProgramRun:
    """Wait for the program, kill it if it prints too much, and return how it ended.

    The kill does not wait for the time limit. A timer looks for it, because reading the stream meanwhile
    would take more CPU time than a short case.
    """

    timer: asyncio.TimerHandle

    def end_flood() -> None:
        nonlocal timer
        if process.stdout.truncated:
            process.kill()
        else:
            timer = loop.call_later(_LOOK, end_flood)

    loop = asyncio.get_running_loop()
    timer = loop.call_later(_LOOK, end_flood)
    meter = RunMeter(sandbox, limits, None)
    answer = asyncio.wrap_future(process)
    try:
        result = await meter.within(answer)
        if isinstance(result, Verdict):
            return ProgramRun(None, result)
        return await judged(meter, result, flooded=process.stdout.truncated)
    finally:
        process.cancel()
        abandon(answer)
        timer.cancel()


async def judged(meter: RunMeter, result: ProcessResult, *, flooded: bool = False) -> ProgramRun:
    """Convert a program's result to a run, with a verdict for a limit, a signal or a bad exit status.

    `flooded` tells that its stdout exceeded the limit.
    """
    verdict = await meter.judge(result, flooded=flooded)
    if isinstance(verdict, Verdict):
        return ProgramRun(result, verdict)
    return ended_run(result)


def ended_run(result: ProcessResult) -> ProgramRun:
    """Convert the result of a program that stayed within its limits to a run."""
    if result.returncode == 0:
        return ProgramRun(result)
    return ProgramRun(result, runtime_error(_ended(result)))


def _ended(result: ProcessResult) -> str:
    last = shown(result.stderr[-2000:].strip().rpartition("\n")[2])
    status = result.returncode
    text = f"exited with status {status}"
    if status > 128 and result.ending in (Ending.SIGNAL, None):
        text = f"ended by {_SIGNALS.get(status - 128, f'signal {status - 128}')}"
    return f"{text}: {last}" if last else text


async def _with_outputs(
    sandbox: Sandbox, ran: ProgramRun, given: ProgramInput, limits: Limits
) -> ProgramRun:
    outputs: dict[str, bytes] = {}
    for name in given.outputs:
        try:
            outputs[name] = await sandbox.read_file(
                f"{FOLDER}/{name}", max_bytes=limits.output_limit
            )
        except SandboxFileNotFoundError:
            verdict = failed(f"it did not write the file {name!r}")
            return dataclasses.replace(ran, verdict=verdict)
        except SandboxFileError as error:
            detail = f"the file {name!r} cannot be read: {shown(error)}"
            return dataclasses.replace(ran, verdict=failed(detail, Outcome.TRUNCATED))
    return dataclasses.replace(ran, outputs=outputs)


def runtime_error(detail: str) -> Verdict:
    """Return the verdict of a program that ended by a signal or with a status other than 0."""
    return failed(detail, Outcome.RUNTIME_ERROR)
