"""Grading what an agent made in a sandbox that the agent never saw."""

import asyncio
import posixpath
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from sandboxkit import (
    ConfigurationError,
    Sandbox,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxNotFoundError,
    SandboxTerminatedError,
)
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict, failed, masked

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
    after, whatever happens. Failures of the infrastructure while grading are tried again in a
    new sandbox; past `retries` the verdict is INFRA_ERROR, and so it is after `deadline`
    seconds for all of it. An artefact that is missing fails.
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
    except TimeoutError:
        if not limit.expired():
            raise  # the caller's own
        return masked(f"not graded within deadline={deadline:g} s")


async def _grade(
    agent: Sandbox,
    artefacts: Sequence[str],
    fresh: Callable[[], Sandbox],
    grade: Callable[[Sandbox], Awaitable[Verdict]],
    limits: tuple[int, int],
    retries: int,
) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="sandboxkit-artefacts-") as folder:
        try:
            copies = await _export(agent, artefacts, Path(folder), *limits)
        except SandboxFileNotFoundError as error:
            return failed(f"artefact {error.path!r} is missing")
        except SandboxFileError as error:
            return Verdict(Outcome.TRUNCATED, 0.0, "policy", f"not exported: {error}")
        except SandboxError as error:
            return masked(f"{type(error).__name__} while exporting: {error}")
        for attempt in range(retries + 1):
            try:
                return await _grade_once(fresh(), copies, grade)
            except ConfigurationError:
                raise
            except SandboxError as error:
                again = error.retryable or isinstance(
                    error, (SandboxTerminatedError, SandboxNotFoundError)
                )
                if not again or attempt == retries:
                    return masked(f"{type(error).__name__} in attempt {attempt + 1}: {error}")
                await asyncio.sleep(_FIRST_PAUSE * 2**attempt)
    raise AssertionError("unreachable")


async def _export(
    agent: Sandbox, artefacts: Sequence[str], folder: Path, max_bytes: int, max_files: int
) -> dict[str, Path]:
    """Copy the artefacts out and stop the sandbox: where each now is on the host."""
    copies: dict[str, Path] = {}
    try:
        for number, path in enumerate(artefacts):
            copies[path] = folder / str(number)
            await agent.download(path, copies[path], max_bytes=max_bytes, max_files=max_files)
    finally:
        await agent.stop()
    return copies


async def _grade_once(
    sandbox: Sandbox,
    copies: dict[str, Path],
    grade: Callable[[Sandbox], Awaitable[Verdict]],
) -> Verdict:
    try:
        for path, copy in copies.items():
            await sandbox.upload(copy, path)
        return await grade(sandbox)
    finally:
        await sandbox.stop()
