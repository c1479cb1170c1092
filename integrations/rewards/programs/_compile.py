"""Compilation of a program, once for all its cases, in a sandbox that knows nothing but the source."""

import asyncio
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxkit import Operation, ProcessResult, Sandbox, SandboxFileError, Session
from sandboxkit.integrations.rewards._boundary import shown
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._run import RunMeter, abandon, retried
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict
from sandboxkit.integrations.rewards.programs._languages import Language
from sandboxkit.integrations.rewards.programs._shell import limited
from sandboxkit.integrations.rewards.programs._toolchain import NOT_FOUND, require

FOLDER = "/workspace"
_WORDS = 64 << 10
"""How many bytes of a compiler's messages are kept."""
_PROGRAM = 64 << 20
"""The largest program in bytes."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program that is ready to run: its file, and the command."""

    language: Language
    content: bytes = field(repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Further files beside it."""

    @property
    def path(self) -> str:
        """Return the program's file in a sandbox."""
        return f"{FOLDER}/{self.language.program or self.language.source}"


async def compiled(
    session: Session,
    language: Language,
    code: str,
    limits: Limits,
    files: Mapping[str, bytes] | None = None,
) -> Compiled | Verdict:
    """Compile a source within `limits`, or return the verdict COMPILE_ERROR or INFRA_ERROR.

    `language` is bound to the source. A language without a compiler takes no sandbox.
    """
    source = code.encode(errors="surrogatepass")
    if not language.compile:
        return Compiled(language, source, files or {})
    given = {f"{FOLDER}/{name}": content for name, content in (files or {}).items()}

    async def attempt(sandbox: Sandbox, _: bool) -> Compiled | Verdict | NotStarted:
        await sandbox.start()
        await sandbox.write_file(f"{FOLDER}/{language.source}", source)
        return await _compile(sandbox, language, limits)

    answer = await Operation(retried(session, limits, attempt, given, forks_python=False))
    if isinstance(answer, NotStarted):
        lost = await require(session, language, limits)
        return lost or _error(answer.words)
    if isinstance(answer, Verdict) and answer.outcome not in (
        Outcome.INFRA_ERROR,
        Outcome.COMPILE_ERROR,
    ):
        return _error(f"the compiler {_ENDS.get(answer.outcome, 'failed')}: {answer.detail}")
    return answer


@dataclass(frozen=True, slots=True)
class NotStarted:
    """A compiler that ended as if a command were missing, and its words."""

    words: str


_ENDS = {
    Outcome.TIMEOUT: "took too long",
    Outcome.OOM: "ran out of memory",
    Outcome.KILLED: "was killed",
}


async def _compile(
    sandbox: Sandbox, language: Language, limits: Limits
) -> Compiled | Verdict | NotStarted:
    process = sandbox.exec(
        limited(language.compile, limits, stack=False), output_limit=_WORDS, env=language.env
    )
    meter = RunMeter(sandbox, limits, None)
    answer = asyncio.wrap_future(process)
    try:
        result = await meter.within(answer)
        if isinstance(result, ProcessResult):
            result = await meter.judge(dataclasses.replace(result, truncated=False))
    finally:
        process.cancel()
        abandon(answer)
    if isinstance(result, Verdict):
        return result
    if result.returncode:
        words = result.stderr.strip() or result.stdout.strip()
        words = shown(words or f"the compiler's status is {result.returncode}")
        return NotStarted(words) if result.returncode in NOT_FOUND else _error(words)
    try:
        content = await sandbox.read_file(f"{FOLDER}/{language.program}", max_bytes=_PROGRAM)
    except SandboxFileError as error:
        return _error(f"the compiler left no program of at most {_PROGRAM >> 20} MiB: {error}")
    return Compiled(language, content)


def _error(detail: str) -> Verdict:
    return Verdict(Outcome.COMPILE_ERROR, 0.0, "policy", detail, "isolated")
