"""Interactive problems: the host connects a submission and an interactor, each in its own sandbox."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from sandboxkit import (
    CommandStartError,
    Process,
    ProcessResult,
    Sandbox,
    SandboxError,
    Session,
)
from sandboxkit.integrations.rewards._boundary import caused_by_command, shown
from sandboxkit.integrations.rewards._checkers import Mark
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._run import RunMeter, abandon, kill, retried, run_options
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict, failed, masked
from sandboxkit.integrations.rewards.programs._compile import Compiled
from sandboxkit.integrations.rewards.programs._execute import (
    ProgramRun,
    judged,
    runtime_error,
    setup,
)
from sandboxkit.integrations.rewards.programs._judge_program import (
    JudgeBroken,
    decided,
    judge_limits,
    judge_program,
)
from sandboxkit.integrations.rewards.programs._rlimits import cannot_run
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram
from sandboxkit.integrations.rewards.programs._toolchain import require

_LAST_WORDS = 60.0
"""Time limit in seconds for an interactor to end after the submission has ended."""
_FROM_INTERACTOR = 256 << 20
"""Maximum number of bytes that an interactor may send."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """How an interactive case ended."""

    ran: ProgramRun
    mark: Mark | None = None
    """The interactor's decision; None if there is none, or if the failure in `ran` takes precedence."""


async def converse(
    session: Session,
    program: Compiled,
    testlib: JudgeProgram,
    files: Mapping[str, bytes],
    limits: Limits,
) -> Dialogue:
    """Run a submission against an interactor; an infrastructure failure is retried.

    `files` are the interactor's input.txt and answer.txt, by name. A submission that waits for input
    for ever gets TIMEOUT. A rejection by the interactor takes precedence over a later failure of the
    submission, and a crash of the submission over a later rejection. Raises ConfigurationError if the
    interactor does not compile, or if sandboxes lack the submission's interpreter.
    """
    interactor = await judge_program(session, testlib, limits)
    if isinstance(interactor, Verdict):
        return Dialogue(ProgramRun(None, interactor))

    own = judge_limits(limits)

    async def attempt(sandbox: Sandbox, alone: bool) -> Dialogue | Verdict:
        await sandbox.start()
        options = run_options(own, resets=False, forks_python=False)
        async with session.sandbox(counted=False, **options) as judge:
            asking = judge.exec(
                (*interactor.language.run, *testlib.arguments),
                setup=setup(interactor, own, files),
                env=interactor.language.env,
                stdin=True,
                output_limit=1 << 16,
            )
            try:
                dialogue = await _joined(sandbox, program, asking, testlib, limits)
            except SandboxError as error:
                if error.sandbox_id == judge.id and caused_by_command(error) and alone:
                    return Dialogue(ProgramRun(None, failed(f"it ended the interactor: {error}")))
                raise
            finally:
                await kill(asking)
        verdict = dialogue.ran.verdict
        return verdict if verdict and verdict.outcome is Outcome.KILLED else dialogue

    answer = await retried(session, limits, attempt, forks_python=False)
    if isinstance(answer, Dialogue):
        lost = None if answer.ran.started else await require(session, program.language, limits)
        return Dialogue(ProgramRun(None, lost)) if lost else answer
    if answer.outcome is Outcome.KILLED:
        answer = runtime_error("ended by SIGKILL")
    return Dialogue(ProgramRun(None, answer))


async def _joined(
    sandbox: Sandbox, program: Compiled, asking: Process, testlib: JudgeProgram, limits: Limits
) -> Dialogue:
    subject = sandbox.exec(
        program.language.run,
        stdin=True,
        output_limit=1 << 16,
        env=program.language.env,
        setup=setup(program, limits),
    )
    to_judge = Pipe(subject, asking, limits.output_limit)
    to_subject = Pipe(asking, subject, _FROM_INTERACTOR)
    pumps = [asyncio.ensure_future(each.run()) for each in (to_judge, to_subject)]
    meter = RunMeter(sandbox, limits, None)
    submission, interactor = asyncio.wrap_future(subject), asyncio.wrap_future(asking)
    ended = list[asyncio.Future[ProcessResult]]()
    for future in (submission, interactor):
        future.add_done_callback(ended.append)
    both = asyncio.wait([submission, interactor], return_when=asyncio.FIRST_COMPLETED)
    either = asyncio.ensure_future(both)
    try:
        first = await meter.within(either)
        error = submission.exception() if submission.done() else None
        if isinstance(error, CommandStartError) and cannot_run(error):
            return Dialogue(ProgramRun(None, runtime_error(shown(error)), started=False))
        if isinstance(first, Verdict):
            return Dialogue(ProgramRun(None, first))
        submission_first = ended[:1] == [submission]
        if interactor.done():
            mark = _decision(interactor.result(), testlib, to_judge)
            if isinstance(mark, Verdict):
                return Dialogue(ProgramRun(None, mark))
            if mark.score == 0 and not submission_first:
                return Dialogue(ProgramRun(None), mark)
        result = await meter.within(submission)
        if isinstance(result, Verdict):
            return Dialogue(ProgramRun(None, result))
        ran = await judged(meter, result, flooded=to_judge.flooded)
        if ran.verdict is not None and (
            submission_first or ran.verdict.outcome is not Outcome.RUNTIME_ERROR
        ):
            return Dialogue(ran)
        await asyncio.wait([interactor], timeout=_LAST_WORDS)
        if not interactor.done():
            return Dialogue(
                ProgramRun(result, masked("the interactor did not end after the submission"))
            )
        mark = _decision(interactor.result(), testlib, to_judge)
        if isinstance(mark, Verdict):
            return Dialogue(ProgramRun(result, mark))
        return Dialogue(ran if mark.score else ProgramRun(result), mark)
    finally:
        for each in pumps:
            each.cancel()
        await kill(subject)
        abandon(either)
        for future in (submission, interactor):
            abandon(future)


def _decision(result: ProcessResult, testlib: JudgeProgram, heard: "Pipe") -> Mark | Verdict:
    """Return the decision of an interactor that has ended.

    An interactor that ended without a decision fails the submission, whose words or silence it met. Only one that
    ended before it was sent anything, even an end of its input, is the task's fault and masks the sample.
    """
    try:
        return decided(result, testlib)
    except JudgeBroken as broken:
        detail = f"the interactor broke: {broken}"
        if heard.size or heard.ended:
            return failed(detail)
        return masked(f"the task is at fault: {detail}, before it was sent anything")


class Pipe:
    """Copies the stdout of one process to the stdin of another one, up to `limit` bytes."""

    def __init__(self, source: Process, target: Process, limit: int) -> None:
        self._source, self._target, self._limit = source, target, limit
        self.size = 0
        """Number of bytes read from the source."""
        self.flooded = False
        """Whether the source printed more than `limit` bytes."""
        self.ended = False
        """Whether the target was sent the end of its input."""

    async def run(self) -> None:
        """Copy until the source ends; kill it past the limit. Drop bytes that the target does not read."""
        open_ = True
        async for piece in self._source.stdout.bytes():
            self.size += len(piece)
            if self.size > self._limit:
                self.flooded = True
                self._source.kill()
            if open_:
                try:
                    await self._target.stdin.write(piece)
                except BrokenPipeError:
                    open_ = False
        if open_:
            self.ended = True
            try:
                await self._target.stdin.close()
            except BrokenPipeError:
                pass
