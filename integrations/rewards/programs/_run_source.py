"""Compiles a source in any language and runs it once, without comparing its output."""

import dataclasses
from dataclasses import dataclass

from sandboxkit import Operation, ProcessResult, Session
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict
from sandboxkit.integrations.rewards.programs._compile import build
from sandboxkit.integrations.rewards.programs._execute import ProgramInput, execute
from sandboxkit.integrations.rewards.programs._languages import Language, language_of

_MEMORY_MB = 1024


@dataclass(frozen=True, slots=True)
class SourceRun:
    """How a source was compiled and how its program ended."""

    compiler: ProcessResult | None
    """The compiler's result; None if the language has no compiler or it exceeded a limit."""
    compiler_exceeded: Outcome | None = None
    """The outcome if the compiler exceeded a limit, such as TIMEOUT."""
    result: ProcessResult | None = None
    """The program's result; None if it did not run or was stopped at a limit."""
    verdict: Verdict | None = None
    """The reason of a failure: compilation, a limit, a bad exit status or the infrastructure; else None."""


def run_source(
    session: Session,
    language: str | Language,
    code: str,
    given: ProgramInput,
    limits: Limits,
    compile_limits: Limits,
) -> Operation[SourceRun]:
    """Compile a source in a pristine sandbox and run it once in another one, without comparing its output.

    The compiler gets the files of `given` as well. The language's `memory_extra_mb` is added to the
    memory in `limits`. Raises ConfigurationError for an unknown language, and if sandboxes lack its
    compiler or run time.
    """
    chosen = language_of(language)
    return Operation(_run_source(session, chosen, code, given, limits, compile_limits))


async def _run_source(
    session: Session,
    chosen: Language,
    code: str,
    given: ProgramInput,
    limits: Limits,
    compile_limits: Limits,
) -> SourceRun:
    memory = limits.memory_mb or _MEMORY_MB
    compiler = dataclasses.replace(
        compile_limits, memory_mb=max(chosen.compile_memory_mb, limits.memory_mb or 0)
    )
    bound = chosen.bound(code, max(memory // 2, 64))
    built = await build(session, bound, code, compiler, given.files)
    if isinstance(built.answer, Verdict):
        return SourceRun(built.result, built.exceeded, verdict=built.answer)
    room = dataclasses.replace(limits, memory_mb=memory + chosen.memory_extra_mb)
    ran = await execute(session, built.answer, given, room)
    return SourceRun(built.result, result=ran.result, verdict=ran.verdict)
