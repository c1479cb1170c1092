"""What a grading with two sandboxes is made of: processes that answer lines, and a machine's files."""

import asyncio
import json
from typing import Any

from sandboxkit import (
    CommandTimeoutError,
    ConfigurationError,
    Operation,
    Process,
    Sandbox,
    SandboxFileError,
    SandboxFileNotFoundError,
)

_CHUNK_LIMIT = 64 * 1024  # of what a result keeps; lines are read as they come
_PROGRAM_OUTPUT = 1 << 20


class LineTooLong(Exception):
    """A line above the limit."""


class Ended(Exception):
    """A process ended where a line was expected of it."""

    def __init__(self, returncode: int) -> None:
        super().__init__(returncode)
        self.returncode = returncode


class Lines:
    """A process that answers lines with lines."""

    def __init__(self, sandbox: Sandbox, argv: list[str], first: Any, limit: int) -> None:
        """Start it; `first` is its job, in JSON. A line it writes has at most `limit` bytes."""
        self._process: Process = sandbox.exec(argv, stdin=True, output_limit=_CHUNK_LIMIT)
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
            raise Ended((await self._process).returncode) from None
        while (end := self._unread.find(b"\n", self._searched)) < 0:
            self._searched = len(self._unread)
            if self._searched > self._limit:
                raise LineTooLong
            try:
                self._unread += await anext(self._chunks)
            except StopAsyncIteration:
                raise Ended((await self._process).returncode) from None
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


async def machine(sandbox: Sandbox, request: Any) -> list[Any]:
    """Do what tests ask of the subject's machine: ["done", value] or ["error", kind, text]."""
    try:
        match request:
            case ["run", argv, stdin, cwd, timeout, env]:
                result = await sandbox.exec(
                    argv,
                    stdin=stdin,
                    cwd=cwd,
                    timeout=timeout,
                    env=env,
                    output_limit=_PROGRAM_OUTPUT,
                )
                return ["done", [result.returncode, result.stdout]]
            case ["read", path, limit]:
                return ["done", (await sandbox.read_file(path, max_bytes=limit)).hex()]
            case ["write", path, content]:
                await sandbox.write_file(path, bytes.fromhex(content))
            case ["remove", path]:
                await _remove(sandbox, path)
            case _:
                raise ConfigurationError(f"the judge asked for {str(request)[:80]}")
    except CommandTimeoutError as error:
        return ["error", "TimeoutError", str(error)]
    except SandboxFileNotFoundError as error:
        return ["error", "FileNotFoundError", str(error)]
    except SandboxFileError as error:
        return ["error", "OSError", str(error)]
    return ["done", None]


async def _remove(sandbox: Sandbox, path: str) -> None:
    try:
        await sandbox.remove(path, recursive=True)
    except SandboxFileNotFoundError:
        pass
