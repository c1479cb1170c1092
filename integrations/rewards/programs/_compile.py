"""Compiles a program once for all its cases, in a sandbox that holds only the source."""

import dataclasses
import posixpath
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxkit import (
    CommandStartError,
    ConfigurationError,
    ProcessResult,
    Sandbox,
    SandboxFileError,
    Session,
)
from sandboxkit.integrations.rewards._boundary import shown
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._run import retried, watched
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict
from sandboxkit.integrations.rewards.programs._languages import Language, language_of
from sandboxkit.integrations.rewards.programs._rlimits import cannot_run, limited
from sandboxkit.integrations.rewards.programs._samples import SAMPLES
from sandboxkit.integrations.rewards.programs._toolchain import NOT_FOUND, require
from sandboxkit.types import CommandFile

FOLDER = "/workspace"
_WORDS = 64 << 10
"""Maximum size in bytes of a compiler's messages; the rest is dropped."""
_PROGRAM = 64 << 20
"""Maximum size in bytes of a compiled program."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program that is ready to run. `content` is the compiled file, or the source if none is compiled."""

    language: Language
    content: bytes = field(repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Further files for the program's folder, by name."""

    @property
    def path(self) -> str:
        """The path of the program's file in a sandbox."""
        return f"{FOLDER}/{self.language.program or self.language.source}"


@dataclass(frozen=True, slots=True)
class Build:
    """The end of a compilation: `answer` is the program, or a verdict if it failed."""

    answer: Compiled | Verdict
    result: ProcessResult | None = None
    """The compiler's result; None if no compiler ran or it exceeded a limit."""
    exceeded: Outcome | None = None
    """The outcome if the compiler exceeded a limit, such as TIMEOUT."""
    started: bool = True
    """False if there is no compiler that can be run."""


async def build(
    session: Session,
    language: Language,
    code: str,
    limits: Limits,
    files: Mapping[str, bytes] | None = None,
) -> Build:
    """Compile `code` within `limits`; the answer is the verdict COMPILE_ERROR or INFRA_ERROR if that fails.

    `language` must come from `Language.bound`. `files` are further files for the compiler, by name.
    No sandbox is used for a language without a compiler. Raises ConfigurationError if sandboxes lack
    the compiler, or if it does not compile a sample either.
    """
    source = code.encode(errors="surrogatepass")
    if not language.compile:
        return Build(Compiled(language, source, files or {}))
    given = {posixpath.join(FOLDER, name): content for name, content in (files or {}).items()}

    async def attempt(sandbox: Sandbox, _: bool) -> Build | Verdict:
        await sandbox.start()
        return await _compile(sandbox, language, source, limits)

    ended = await retried(session, limits, attempt, given, forks_python=False)
    if isinstance(ended, Verdict):
        if ended.outcome is Outcome.INFRA_ERROR:
            return Build(ended)
        words = f"the compiler {_ENDS.get(ended.outcome, 'failed')}: {ended.detail}"
        return Build(_error(words), exceeded=ended.outcome)
    if not ended.started or (ended.result and ended.result.returncode in NOT_FOUND):
        lost = await require(session, language, limits)
        return Build(lost) if lost else ended
    if isinstance(ended.answer, Verdict) and ended.exceeded is None:
        await _require_sample(session, language, code, limits)
    return ended


_compiling: "weakref.WeakKeyDictionary[Session, set[tuple[str, ...]]]" = weakref.WeakKeyDictionary()
"""The compilers that do not fail for every program, by session."""


async def _require_sample(session: Session, language: Language, code: str, limits: Limits) -> None:
    """Raise ConfigurationError if the compiler does not compile a sample either, as without a library.

    Each session checks a compiler once, after the first compile error.
    """
    sample, known = SAMPLES.get(language.name), _compiling.setdefault(session, set())
    if sample is None or sample == code or language.compile in known:
        return
    if language_of(language.name).compile != language.compile:
        return  # a command of the caller's own, or of this source alone, need not take the sample
    found = await build(session, language, sample, limits)
    if isinstance(found.answer, Compiled):
        known.add(language.compile)
    elif found.result is not None:
        raise ConfigurationError(
            f"{shown(' '.join(language.compile))} does not compile a sample in {language.name} either: "
            f"{found.answer.detail}; sandboxes need {' '.join(language.packages) or 'its toolchain'}"
        )


_ENDS = {
    Outcome.TIMEOUT: "took too long",
    Outcome.OOM: "ran out of memory",
    Outcome.KILLED: "was killed",
}


async def _compile(
    sandbox: Sandbox, language: Language, source: bytes, limits: Limits
) -> Build | Verdict:
    # If a process of the compiler reaches its CPU limit, the compiler's driver exits with an ordinary
    # error status. So each process gets 1 s more, and the meter compares the sum with `limits`.
    late = limits.timeout + 1
    later = dataclasses.replace(
        limits, timeout=late, wall=None, deadline=max(limits.deadline, late + 1)
    )
    files = (CommandFile(f"{FOLDER}/{language.source}", source),)
    process = sandbox.exec(
        language.compile,
        output_limit=_WORDS,
        env=language.env,
        setup=limited(later, files=files, stack=False),
    )
    try:
        result = await watched(sandbox, process, limits, flooded=False)
    except CommandStartError as error:
        if not cannot_run(error):
            raise
        return Build(_error(str(error)), started=False)
    if isinstance(result, Verdict):
        return result
    if result.returncode:
        words = result.stderr.strip() or result.stdout.strip()
        words = shown(words or f"the compiler exited with status {result.returncode}")
        return Build(_error(words), result)
    try:
        content = await sandbox.read_file(f"{FOLDER}/{language.program}", max_bytes=_PROGRAM)
    except SandboxFileError as error:
        words = f"the compiler wrote no program of at most {_PROGRAM >> 20} MiB: {error}"
        return Build(_error(words), result)
    return Build(Compiled(language, content), result)


def _error(detail: str) -> Verdict:
    return Verdict(Outcome.COMPILE_ERROR, 0.0, "policy", detail, "isolated")
