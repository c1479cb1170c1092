"""One run of a source in any language: compiled, and run once without any comparison."""

import dataclasses
from dataclasses import dataclass

from sandboxkit import ProcessResult, Session
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
    """The compiler's end; None for a language without one, and if it exceeded a limit."""
    compiler_exceeded: Outcome | None = None
    """The outcome of a compiler that exceeded a limit, such as TIMEOUT."""
    result: ProcessResult | None = None
    """The program's end; None if it did not run or exceeded a limit."""
    verdict: Verdict | None = None
    """The verdict on a failed compilation, an exceeded limit, a bad status or the infrastructure; else None."""


async def run_source(
    session: Session,
    language: str | Language,
    code: str,
    given: ProgramInput,
    limits: Limits,
    compile_limits: Limits,
) -> SourceRun:
    """Compile a source in a pristine sandbox and run it once in another one, without comparing anything.

    The files of `given` are there for the compiler as well. The run time's own memory comes on top of
    `limits`. Raises ConfigurationError for an unknown language, and where sandboxes lack its toolchain.
    """
    chosen = language_of(language)
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
