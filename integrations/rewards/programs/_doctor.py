"""Checks which languages compile and run in a session's sandboxes."""

import dataclasses
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._verdict import Outcome
from sandboxkit.integrations.rewards.programs._languages import LANGUAGES
from sandboxkit.integrations.rewards.programs._program import Program
from sandboxkit.integrations.rewards.programs._samples import CASES, SAMPLES


@dataclass(frozen=True, slots=True)
class LanguageReport:
    """Whether a sample program of one language compiled and ran."""

    name: str
    works: bool
    seconds: float
    """Elapsed time of grading the sample on its two cases."""
    detail: str
    """The missing command or the failure; empty if the language works."""
    version: str = ""
    """The line in which the compiler or interpreter tells its version; empty if the language does not work."""


async def check_languages(
    session: Session, limits: Limits | None = None
) -> AsyncIterator[LanguageReport]:
    """Grade a sample program of each built-in language in turn, and yield a report for each.

    `limits` apply to each run; default: those of `Program`. Every run has a fresh sandbox.
    """
    grader = Program() if limits is None else Program(limits=limits)
    grader = dataclasses.replace(grader, limits=dataclasses.replace(grader.limits, reuse="never"))
    for language in LANGUAGES:
        task = {"cases": list(CASES), "language": language.name}
        begun = time.monotonic()
        try:
            verdict = await grader.grade(session, SAMPLES[language.name], task)
            works = verdict.outcome is Outcome.PASSED
            detail = "" if works else f"{verdict.outcome}: {verdict.detail}"
        except ConfigurationError as error:
            works, detail = False, str(error)
        seconds, version = time.monotonic() - begun, ""
        if works:
            asked = f"{language.tools[0]} {language.version} 2>&1 | grep -m 1 '[0-9]'"
            version = (await session.run(["sh", "-c", asked])).stdout.strip()[:60]
        yield LanguageReport(language.name, works, seconds, detail, version)
