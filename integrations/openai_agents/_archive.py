"""Packs and unpacks a workspace as one tar stream, with tar in the sandbox."""

import asyncio
import io
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from agents.sandbox.errors import (
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceWriteTypeError,
)

from sandboxkit import Process, Sandbox, SandboxError
from sandboxkit.integrations.openai_agents import _errors

_SECONDS = 1800.0
_CHUNK = 1 << 20
_IN_MEMORY = 16 << 20
_KEPT = 64 << 10
_UNPACK = 'mkdir -p -- "$1" && exec tar -C "$1" -xf -'


async def pack(sandbox: Sandbox, root: Path, skip: Iterable[Path], limit: int) -> io.IOBase:
    """Pack the folder `root` without the paths in `skip`; the caller must close the returned file.

    Raises WorkspaceArchiveReadError, also if the archive has more than `limit` bytes.
    """
    without = [f"--exclude=./{_escaped(path)}" for path in sorted(skip)]
    argv = ["tar", *without, "-C", root.as_posix(), "-cf", "-", "."]
    archive = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - the caller's
    process: Process | None = None
    try:
        process = sandbox.exec(argv, cwd="/", timeout=_SECONDS, output_limit=_KEPT)
        size = 0
        async for chunk in process.stdout.bytes():
            size += len(chunk)
            if size > limit:
                reason = {"reason": "archive_too_large", "limit": limit}
                raise WorkspaceArchiveReadError(path=root, context=reason, retryable=False)
            archive.write(chunk)
        result = await process
        if result.returncode:
            failed = _failed(result.returncode, result.stderr)
            raise WorkspaceArchiveReadError(path=root, context=failed, retryable=False)
        archive.seek(0)
    except BaseException as error:
        archive.close()
        if process is not None:
            process.kill()
        if isinstance(error, SandboxError):
            raise _errors.reading(root, error) from error
        raise
    return archive


async def unpack(sandbox: Sandbox, root: Path, data: io.IOBase) -> None:
    """Unpack a tar stream into the folder `root`. Raises WorkspaceArchiveWriteError.

    tar runs inside the sandbox, so a malicious archive can do no more than a command there.
    """
    argv = ["sh", "-c", _UNPACK, "sh", root.as_posix()]
    process: Process | None = None
    try:
        process = sandbox.exec(argv, cwd="/", stdin=True, timeout=_SECONDS, output_limit=_KEPT)
        await _send(process, data, root)
        result = await process
    except BaseException as error:
        if process is not None:
            process.kill()
        if isinstance(error, SandboxError):
            raise _errors.writing(root, error) from error
        raise
    if result.returncode:
        failed = _failed(result.returncode, result.stderr)
        raise WorkspaceArchiveWriteError(path=root, context=failed, retryable=False)


async def _send(process: Process, data: io.IOBase, root: Path) -> None:
    try:
        while chunk := await asyncio.to_thread(data.read, _CHUNK):
            if not isinstance(chunk, bytes | bytearray):
                raise WorkspaceWriteTypeError(path=root, actual_type=type(chunk).__name__)
            await process.stdin.write(bytes(chunk))
        await process.stdin.close()
    except BrokenPipeError:
        pass  # tar has ended; the caller reports its status and stderr


def _escaped(path: Path) -> str:
    return re.sub(r"([\[\]\\*?])", r"\\\1", path.as_posix())


def _failed(status: int, stderr: str) -> dict[str, object]:
    return {"reason": "tar_failed", "exit_code": status, "stderr": stderr[-2000:]}
