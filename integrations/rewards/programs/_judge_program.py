"""Compiles a task's own checkers and interactors once; runs them in sandboxes without a submission."""

import dataclasses
import functools
import threading
import weakref
from collections import OrderedDict

from sandboxkit import ConfigurationError, Ending, ProcessResult, Session
from sandboxkit.integrations.rewards._boundary import shown
from sandboxkit.integrations.rewards._checkers import Answer, Mark
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._run import OUT_OF_TIME
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict, failed, masked
from sandboxkit.integrations.rewards.programs._compile import Compiled, build
from sandboxkit.integrations.rewards.programs._execute import ProgramInput, execute
from sandboxkit.integrations.rewards.programs._languages import language_of
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram, printed_score

SECONDS = 10.0
"""CPU time limit in seconds for one run of a checker or interactor."""
_MEMORY_MB = 1024
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
    run = functools.partial(_run, session, program, testlib, judge_limits(limits))
    try:
        return await run(answer)
    except JudgeBroken as broken:
        try:
            ours = await run(dataclasses.replace(answer, output=answer.expected))
        except JudgeBroken as own:
            return masked(
                f"the task is at fault: its checker fails for the expected output too: {own}"
            )
        if isinstance(ours, Verdict):
            return ours
        return failed(f"the checker cannot read the output: {broken}")


def judge_limits(limits: Limits) -> Limits:
    """Return the limits of one run of a checker or interactor."""
    memory = max(limits.memory_mb or 0, _MEMORY_MB)
    return dataclasses.replace(
        limits, timeout=SECONDS, wall=_WALL, output_limit=_MESSAGE, memory_mb=memory
    )


async def _run(
    session: Session, program: Compiled, testlib: JudgeProgram, limits: Limits, answer: Answer
) -> Mark | Verdict:
    files = {"input.txt": answer.stdin, "output.txt": answer.output, "answer.txt": answer.expected}
    stdin = answer.output if testlib.protocol == "icpc" else b""
    ran = await execute(session, program, ProgramInput(stdin, testlib.arguments, files), limits)
    verdict = ran.verdict
    if verdict is not None and verdict.reward is None:
        return verdict
    if ran.result is None or (verdict and verdict.outcome is not Outcome.RUNTIME_ERROR):
        raise JudgeBroken(verdict.detail if verdict else "it did not start")
    silent = testlib.protocol == "testlib" and not ran.result.stderr.strip()
    if silent and printed_score(ran.result) is not None:
        raise JudgeBroken(
            f"it prints {ran.result.stdout.strip()!r} alone and exits with status 0, as those of "
            "open-r1/codeforces do: give its JudgeProgram protocol='printed', or print nothing to stdout"
        )
    return decided(ran.result, testlib)


def decided(result: ProcessResult, testlib: JudgeProgram) -> Mark:
    """Convert the exit status of a checker or interactor to its decision. Raises JudgeBroken if it made none."""
    message = result.stderr.strip() or result.stdout.strip()
    status = result.returncode
    signalled = status > 128 and result.ending is not Ending.EXITED
    mark = None if signalled else testlib.mark(result)
    if mark is not None:
        return mark
    how = "it exceeded its CPU time" if status == OUT_OF_TIME else f"it exited with status {status}"
    raise JudgeBroken(f"{how}: {shown(message)}" if message else how)
