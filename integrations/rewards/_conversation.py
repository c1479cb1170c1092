"""What a grading with two sandboxes is made of: processes that answer lines, and a machine's files."""

import asyncio
import errno
import json
from typing import Any

from sandboxkit import (
    CommandStartError,
    ConfigurationError,
    Operation,
    Process,
    ProcessResult,
    Sandbox,
    SandboxFileError,
    SandboxFileNotFoundError,
)
from sandboxkit.integrations.rewards._isolated import Limits, begin, limited, watched
from sandboxkit.integrations.rewards._programs import Program
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict

_CHUNK_LIMIT = 64 * 1024  # of what a result keeps; lines are read as they come
_DEADLINE = 600.0
_KILLED = 137  # 128 + SIGKILL


class LineTooLong(Exception):
    """A line above the limit."""


class Ended(Exception):
    """A process ended where a line was expected of it."""

    def __init__(self, result: ProcessResult) -> None:
        super().__init__(result.returncode)
        self.result = result


class Lines:
    """A process that answers lines with lines."""

    def __init__(self, sandbox: Sandbox, program: Program, first: Any, limit: int) -> None:
        """Start it; `first` is its job, in JSON. A line it writes has at most `limit` bytes."""
        self._process: Process = begin(sandbox, program, stdin=True, output_limit=_CHUNK_LIMIT)
        self._chunks = self._process.stdout.bytes().__aiter__()
        self._unread, self._searched = bytearray(), 0
        self._first = self._write(json.dumps(first).encode())
        self._limit = limit

    async def ask(self, line: bytes | None) -> bytes:
        """Write a line, or none, and return the next one. Raises Ended and LineTooLong."""
        try:
            await self._first
            if line is not None:
                await self._write(line)
        except BrokenPipeError:
            pass  # it has ended, and perhaps said why
        while (end := self._unread.find(b"\n", self._searched)) < 0:
            self._searched = len(self._unread)
            if self._searched > self._limit:
                raise LineTooLong
            try:
                self._unread += await anext(self._chunks)
            except StopAsyncIteration:
                raise Ended(await self._process) from None
        answer = bytes(self._unread[:end])
        del self._unread[: end + 1]
        self._searched = 0
        if len(answer) > self._limit:
            raise LineTooLong
        return answer

    def _write(self, line: bytes) -> Operation[None]:
        return self._process.stdin.write(line + b"\n")

    async def stop(self) -> None:
        """Kill it, if it still runs."""
        self._process.kill()
        await asyncio.wait([asyncio.wrap_future(self._process)])


async def machine(sandbox: Sandbox, request: Any) -> bytes:
    """Do what tests ask of the subject's machine: ["done", value] or ["error", kind, text]."""
    return json.dumps(await _done(sandbox, request)).encode()


async def _done(sandbox: Sandbox, request: Any) -> list[Any]:
    try:
        before = await sandbox.usage() if request[0] == "run" else None
        match request:
            case ["run", argv, stdin, cwd, timeout, env]:
                limits = Limits(timeout=timeout, deadline=_DEADLINE + 10 * timeout)
                process = sandbox.exec(
                    limited(argv, limits),
                    stdin=stdin,
                    cwd=cwd,
                    env=env,
                    output_limit=limits.output_limit,
                )
                return _told(await watched(sandbox, process, limits, before=before))
            case ["read", path, limit]:
                return ["done", (await sandbox.read_file(path, max_bytes=limit)).hex()]
            case ["write", path, content]:
                await sandbox.write_file(path, bytes.fromhex(content))
            case ["remove", path]:
                await _remove(sandbox, path)
            case _:
                raise ConfigurationError(f"the judge asked for {str(request)[:80]}")
    except CommandStartError as error:
        missing = error.errno == errno.ENOENT
        return ["error", "FileNotFoundError" if missing else "OSError", str(error)]
    except SandboxFileNotFoundError as error:
        return ["error", "FileNotFoundError", str(error)]
    except SandboxFileError as error:
        return ["error", "OSError", str(error)]
    return ["done", None]


def _told(result: ProcessResult | Verdict) -> list[Any]:
    if isinstance(result, ProcessResult):
        return ["done", [result.returncode, result.stdout]]
    if result.outcome is Outcome.KILLED:
        return ["done", [_KILLED, ""]]
    kind = "TimeoutError" if result.outcome is Outcome.TIMEOUT else "OSError"
    return ["error", kind, result.detail]


async def _remove(sandbox: Sandbox, path: str) -> None:
    try:
        await sandbox.remove(path, recursive=True)
    except SandboxFileNotFoundError:
        pass
