"""Grading what an agent made in a sandbox that the agent never saw."""

import asyncio
import contextlib
import posixpath
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from sandboxkit import ConfigurationError, Sandbox, SandboxError, SandboxFileNotFoundError
from sandboxkit.integrations.rewards._boundary import TROUBLE, Phase, may_pass, shown, verdict_of
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict

MAX_BYTES = 256 * 1024 * 1024
MAX_FILES = 20_000
_FIRST_PAUSE = 0.2


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

    `artefacts` are absolute paths of files or folders; links and special files in them are
    left out, and they get the same paths in the new sandbox. `fresh` makes that sandbox, such
    as `lambda: session.sandbox(profile="strict")`; `grade` gets it with the artefacts in
    place, and brings tests only then. The agent's sandbox is stopped before, and the new one
    after, whatever happens.

    What the policy brings about is its verdict: an artefact that is missing fails, and one that
    cannot be copied out, or that the new sandbox does not take, is TRUNCATED; a command of
    `grade` that runs past its timeout, or fails where it is checked, and a file that is not
    there end as TIMEOUT and FAILED. So give each command of `grade` a timeout. Failures of the
    infrastructure while grading are tried again in a new sandbox; past `retries` the verdict is
    INFRA_ERROR, and so it is after `deadline` seconds for all of it, and where this machine has
    no room for the artefacts.
    """
    if deadline <= 0:
        raise ConfigurationError(f"deadline={deadline!r} is not a positive number of seconds")
    for path in artefacts:
        if not path.startswith("/") or posixpath.normpath(path) in ("/", "//"):
            raise ConfigurationError(
                f"artefact {path!r} is not an absolute path of a file or folder"
            )
    limit = asyncio.timeout(deadline)
    try:
        async with limit:
            return await _grade(agent, artefacts, fresh, grade, (max_bytes, max_files), retries)
    except TROUBLE as error:
        if limit.expired():
            detail = f"not graded within deadline={deadline:g} s"
            return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail, "isolated")
        return verdict_of(error, Phase.STARTED)
    finally:
        await _stop(agent)


async def _grade(
    agent: Sandbox,
    artefacts: Sequence[str],
    fresh: Callable[[], Sandbox],
    grade: Callable[[Sandbox], Awaitable[Verdict]],
    limits: tuple[int, int],
    retries: int,
) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="sandboxkit-artefacts-") as folder:
        copies = await _export(agent, artefacts, Path(folder), *limits)
        if isinstance(copies, Verdict):
            return copies
        for attempt in range(retries + 1):
            phase = Phase.STARTED
            sandbox = fresh()
            try:
                await sandbox.start()
                phase = Phase.PLACED
                for path, copy in copies.items():
                    await sandbox.upload(copy, path)
                phase = Phase.GRADED
                return await grade(sandbox)
            except TROUBLE as error:
                if attempt == retries or not may_pass(error):
                    return verdict_of(error, phase)
            finally:
                await _stop(sandbox)
            await asyncio.sleep(_FIRST_PAUSE * 2**attempt)
    raise AssertionError("unreachable")


async def _export(
    agent: Sandbox, artefacts: Sequence[str], folder: Path, max_bytes: int, max_files: int
) -> dict[str, Path] | Verdict:
    """Copy the artefacts out and stop the sandbox: where each now is on the host."""
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
        await _stop(agent)
    return copies


async def _stop(sandbox: Sandbox) -> None:
    """Stop one that may be broken; the session tries again when it closes."""
    with contextlib.suppress(SandboxError):
        await sandbox.stop()
