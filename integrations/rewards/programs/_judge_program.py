"""Compiles a task's own checkers and interactors once; runs them in sandboxes without a submission."""

import asyncio
import contextlib
import dataclasses
import functools
import threading
import uuid
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping

from sandboxkit import (
    CommandStartError,
    CommandTimeoutError,
    ConfigurationError,
    Ending,
    ProcessResult,
    Sandbox,
    SandboxError,
    Session,
)
from sandboxkit.integrations._retries import retry
from sandboxkit.integrations.rewards._boundary import caused_by_command, is_transient, shown
from sandboxkit.integrations.rewards._checkers import Answer, Mark
from sandboxkit.integrations.rewards._judges import judges
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._run import OUT_OF_TIME
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict, failed, masked
from sandboxkit.integrations.rewards.programs._compile import Compiled, build
from sandboxkit.integrations.rewards.programs._languages import language_of
from sandboxkit.integrations.rewards.programs._rlimits import cannot_run, limited
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram, mark_of

SECONDS = 10.0
"""CPU time limit in seconds for one run of a checker or interactor."""
JUDGE_SETUP = limited(Limits(timeout=SECONDS))
_WALL = 120.0
_MESSAGE = 64 << 10
_COMPILE_SECONDS = 120.0
_KEPT = 64
"""Maximum number of compiled checkers and interactors that a session keeps."""


_of: "weakref.WeakKeyDictionary[Session, OrderedDict[object, Compiled]]" = (
    weakref.WeakKeyDictionary()
)
_lock = threading.Lock()


class JudgeBroken(Exception):
    """Raised if a checker or interactor ended without a decision; the message describes its end."""


async def judge_program(
    session: Session, testlib: JudgeProgram, limits: Limits
) -> Compiled | Verdict:
    """Return a compiled checker or interactor; the session keeps it for later calls.

    Returns the verdict INFRA_ERROR if the infrastructure fails. Raises ConfigurationError with the
    compiler's messages if the source does not compile.
    """
    key = testlib.key()
    with _lock:
        store = _of.setdefault(session, OrderedDict())
        if key in store:
            store.move_to_end(key)
            return store[key]
    language = language_of(testlib.language).bound(testlib.source, 512)
    own = dataclasses.replace(
        limits, timeout=_COMPILE_SECONDS, wall=None, memory_mb=2048, reuse="never"
    )
    files = {name: text.encode() for name, text in testlib.files.items()}
    answer = (await build(session, language, testlib.source, own, files)).answer
    if isinstance(answer, Verdict):
        if answer.outcome is Outcome.COMPILE_ERROR:
            raise ConfigurationError(f"the task's checker does not compile: {answer.detail}")
        return answer
    with _lock:
        store[key] = answer
        while len(store) > _KEPT:
            store.popitem(last=False)
    return answer


@contextlib.asynccontextmanager
async def placed(
    judge: Sandbox, program: Compiled, files: Mapping[str, bytes]
) -> AsyncIterator[str]:
    """Write a judge program and its files into a new folder; yield its path and remove it afterwards."""
    folder = f"/tmp/sandboxkit-{uuid.uuid4().hex}"
    name = program.path.rpartition("/")[2]
    everything = {**program.files, **files}
    try:
        await judge.write_file(f"{folder}/{name}", program.content, mode=0o555)
        await asyncio.gather(
            *(judge.write_file(f"{folder}/{each}", text) for each, text in everything.items())
        )
        yield folder
    finally:
        with contextlib.suppress(SandboxError):
            await judge.remove(folder, recursive=True)


async def check(
    session: Session, testlib: JudgeProgram, answer: Answer, limits: Limits
) -> Mark | Verdict:
    """Return a checker's decision on an output, or a Verdict if it makes none.

    A checker that makes none, crashes or runs too long is also run on the expected output: if it decides there,
    the verdict is FAILED, otherwise the task is at fault and the sample is masked, as it is if the
    infrastructure fails. Raises ConfigurationError if the checker does not compile.
    """
    program = await judge_program(session, testlib, limits)
    if isinstance(program, Verdict):
        return program
    try:
        return await _check(session, program, testlib, answer, limits)
    except ConfigurationError:
        raise
    except SandboxError as error:
        return masked(f"{type(error).__name__} while the output was checked: {shown(error)}")


async def _check(
    session: Session, program: Compiled, testlib: JudgeProgram, answer: Answer, limits: Limits
) -> Mark | Verdict:
    run = functools.partial(_run, session, program, testlib, limits)
    try:
        return await run(answer, alone=False)
    except JudgeBroken:
        pass  # other checkers in the same sandbox may have caused it
    try:
        return await run(answer, alone=True)
    except JudgeBroken as broken:
        try:
            await run(Answer(answer.stdin, answer.expected, answer.expected), alone=True)
        except JudgeBroken as own:
            return masked(
                f"the task is at fault: its checker fails for the expected output too: {own}"
            )
        return failed(f"the checker cannot read the output: {broken}")


async def _run(
    session: Session,
    program: Compiled,
    testlib: JudgeProgram,
    limits: Limits,
    answer: Answer,
    *,
    alone: bool,
) -> Mark | Verdict:
    files = {"input.txt": answer.stdin, "output.txt": answer.output, "answer.txt": answer.expected}

    async def once() -> ProcessResult:
        try:
            async with (
                judges(session).borrow(alone=alone) as judge,
                placed(judge, program, files) as folder,
            ):
                return await judge.exec(
                    (*program.language.run, *files),
                    setup=JUDGE_SETUP,
                    cwd=folder,
                    env=program.language.env,
                    timeout=_WALL,
                    output_limit=_MESSAGE,
                )
        except CommandTimeoutError as error:
            raise JudgeBroken(str(error)) from error
        except SandboxError as error:
            missing = isinstance(error, CommandStartError) and cannot_run(error)
            if missing or caused_by_command(error):
                raise JudgeBroken(str(error)) from error
            raise

    def again(error: Exception, failures: int) -> bool:
        return failures <= limits.retries and is_transient(error)

    return decided(await retry(once, again), testlib)


def decided(result: ProcessResult, testlib: JudgeProgram) -> Mark:
    """Convert the exit status of a checker or interactor to its decision. Raises JudgeBroken if it made none."""
    message = result.stderr.strip() or result.stdout.strip()
    status = result.returncode
    signalled = status > 128 and result.ending is not Ending.EXITED
    mark = None if signalled else mark_of(status, message, testlib.most)
    if mark is not None:
        return mark
    how = "it exceeded its CPU time" if status == OUT_OF_TIME else f"it exited with status {status}"
    raise JudgeBroken(f"{how}: {shown(message)}" if message else how)
