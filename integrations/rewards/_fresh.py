"""Grading an agent's artefacts in a sandbox that the agent never had access to."""

import posixpath
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from sandboxkit import ConfigurationError, Sandbox, SandboxFileNotFoundError
from sandboxkit.integrations._outages import stop_broken
from sandboxkit.integrations._retries import retry
from sandboxkit.integrations._service import DeadlineError, service_time
from sandboxkit.integrations.rewards._boundary import (
    TROUBLE,
    Phase,
    is_transient,
    shown,
    unproven,
    verdict_of,
)
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict

MAX_BYTES = 256 * 1024 * 1024
MAX_FILES = 20_000


async def grade_in_fresh(
    agent: Sandbox,
    artefacts: Sequence[str],
    fresh: Callable[[], Sandbox],
    grade: Callable[[Sandbox], Awaitable[Verdict]],
    *,
    max_bytes: int = MAX_BYTES,
    max_files: int = MAX_FILES,
    retries: int = 2,
    deadline: float = 3600.0,
) -> Verdict:
    """Export `artefacts` from the agent's sandbox, stop it, and grade them in a pristine one.

    `artefacts` are absolute paths of files or folders. They get the same paths in the new
    sandbox; links, special files and what the agent's user may not read are left out. `fresh`
    makes the new sandbox, such as `lambda: session.sandbox(profile="strict")`. `grade` receives it with the artefacts in place
    and must upload the tests itself; it runs in the caller's event loop, which is why this function is a coroutine
    (in a script without one: `Operation(grade_in_fresh(...)).result()`). The agent's sandbox is always stopped before grading, and
    the new sandbox after it.

    The policy is to blame for: a missing artefact (FAILED); an artefact that cannot be copied out
    or into the new sandbox (TRUNCATED); a command of `grade` that exceeds its timeout (TIMEOUT) or
    fails with `check=True`, and a file that `grade` does not find (FAILED). So give each command
    of `grade` a timeout. After an infrastructure failure grading is retried in a new sandbox, up
    to `retries` times; a sandbox that ends without a proven cause is retried at least once. The
    verdict is INFRA_ERROR when the retries are used up, when the host's disk has no space for the
    artefacts, and after `deadline` seconds; time in the session's queue does not count. Raises
    ConfigurationError for a path that is not absolute and for a `deadline` that is not positive.
    """
    if deadline <= 0:
        raise ConfigurationError(f"deadline={deadline!r} is not a positive number of seconds")
    for path in artefacts:
        if not path.startswith("/") or posixpath.normpath(path) in ("/", "//"):
            raise ConfigurationError(
                f"artefact {path!r} is not an absolute path of a file or folder"
            )
    sandbox: Sandbox | None = None
    phase, copies = Phase.STARTED, dict[str, Path]()

    async def once() -> Verdict:
        nonlocal phase, sandbox
        phase, sandbox = Phase.STARTED, fresh()
        try:
            await sandbox.start()
            phase = Phase.PLACED
            for path, copy in copies.items():
                await sandbox.upload(copy, path)
            phase = Phase.GRADED
            return await grade(sandbox)
        finally:
            await stop_broken(sandbox)

    def again(error: Exception, failures: int) -> bool:
        return failures <= max(retries if is_transient(error) else 0, int(unproven(error)))

    try:
        async with service_time(deadline, lambda: sandbox.queued if sandbox else None):
            with tempfile.TemporaryDirectory(prefix="sandboxkit-artefacts-") as folder:
                found = await _export(agent, artefacts, Path(folder), max_bytes, max_files)
                if isinstance(found, Verdict):
                    return found
                copies.update(found)
                return await retry(once, again)
    except DeadlineError:
        detail = f"not graded within deadline={deadline:g} s"
        return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail, "isolated")
    except TROUBLE as error:
        return verdict_of(error, phase)
    finally:
        await stop_broken(agent)


async def _export(
    agent: Sandbox, artefacts: Sequence[str], folder: Path, max_bytes: int, max_files: int
) -> dict[str, Path] | Verdict:
    """Copy the artefacts to the host and stop the sandbox; return the host path of each."""
    copies: dict[str, Path] = {}
    try:
        for number, path in enumerate(artefacts):
            copies[path] = folder / str(number)
            await agent.download(path, copies[path], max_bytes=max_bytes, max_files=max_files)
    except SandboxFileNotFoundError as error:
        detail = f"artefact {shown(error.path)} is missing"
        return Verdict(Outcome.FAILED, 0.0, "policy", detail, "isolated")
    except TROUBLE as error:
        return verdict_of(error, Phase.EXPORTED)
    finally:
        await stop_broken(agent)
    return copies
