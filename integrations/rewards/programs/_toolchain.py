"""Checks that sandboxes have the compiler and run time of a language."""

import threading
import weakref

from sandboxkit import ConfigurationError, ProcessResult, Sandbox, Session
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._run import retried
from sandboxkit.integrations.rewards._verdict import Verdict
from sandboxkit.integrations.rewards.programs._languages import Language

NOT_FOUND = (126, 127)
"""Exit statuses of a shell that cannot run a command; a program can exit with them as well."""
_LOOK = 'for tool; do command -v "$tool" >/dev/null || echo "$tool"; done'

_seen: "weakref.WeakKeyDictionary[Session, set[tuple[str, ...]]]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


async def require(session: Session, language: Language, limits: Limits) -> Verdict | None:
    """Check that a sandbox without a submission has the commands of a language.

    Raises ConfigurationError for a missing command; returns a Verdict if the infrastructure fails, else
    None. Call this after a compiler or program has exited with a status in `NOT_FOUND`.
    """
    with _lock:
        if language.tools in _seen.setdefault(session, set()):
            return None

    async def attempt(sandbox: Sandbox, _: bool) -> ProcessResult | Verdict:
        await sandbox.start()
        return await sandbox.exec(["/bin/sh", "-c", _LOOK, "sh", *language.tools])

    answer = await retried(session, limits, attempt, forks_python=False)
    if isinstance(answer, Verdict):
        return answer
    missing = answer.stdout.split()
    if missing:
        packages = " ".join(language.packages) or "its toolchain"
        raise ConfigurationError(
            f"sandboxes have no {' and no '.join(missing)} for programs in {language.name}: "
            f"give the session an image with {packages} (scripts/languages-image.sh makes one)"
        )
    with _lock:
        _seen[session].add(language.tools)
    return None
