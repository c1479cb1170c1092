"""Whether a language's compiler and run time are where sandboxes run."""

import threading
import weakref

from sandboxkit import ConfigurationError, Operation, ProcessResult, Sandbox, Session
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._run import retried
from sandboxkit.integrations.rewards._verdict import Verdict
from sandboxkit.integrations.rewards.programs._languages import Language

NOT_FOUND = (126, 127)
"""The statuses with which a shell says that it cannot run a command; any program can end with them."""
_LOOK = 'for tool; do command -v "$tool" >/dev/null || echo "$tool"; done'

_seen: "weakref.WeakKeyDictionary[Session, set[tuple[str, ...]]]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


async def require(session: Session, language: Language, limits: Limits) -> Verdict | None:
    """Look for a language's commands in a fresh sandbox without a submission.

    Raises ConfigurationError for a command that is missing; returns a Verdict if the infrastructure
    fails. Call it when a compiler or program ends as if a command were missing.
    """
    with _lock:
        if language.tools in _seen.setdefault(session, set()):
            return None

    async def attempt(sandbox: Sandbox, _: bool) -> ProcessResult | Verdict:
        await sandbox.start()
        return await sandbox.exec(["/bin/sh", "-c", _LOOK, "sh", *language.tools])

    answer = await Operation(retried(session, limits, attempt, forks_python=False))
    if isinstance(answer, Verdict):
        return answer
    missing = answer.stdout.split()
    if missing:
        packages = " ".join(language.packages) or "its toolchain"
        raise ConfigurationError(
            f"there is no {' and no '.join(missing)} in the sandbox, for programs in {language.name}: "
            f"give the session an image with {packages} (scripts/languages-image.sh makes one)"
        )
    with _lock:
        _seen[session].add(language.tools)
    return None
