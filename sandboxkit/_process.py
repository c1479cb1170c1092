"""Process: a command running in a sandbox, and its result."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from sandboxkit._operation import Operation
from sandboxkit._streams import NoStdin, OutputStream, Stdin
from sandboxkit.errors import CommandFailedError, CommandTimeoutError
from sandboxkit.provider import Output, StreamName

OUTPUT_LIMIT = 10 * 1024 * 1024
_KILLED = 137  # 128 + SIGKILL


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """What a command left behind. `stdout` and `stderr` are text, `*_bytes` the exact bytes."""

    argv: tuple[str, ...]
    returncode: int
    """0 to 255; 128 + n when signal n killed the command."""
    stdout_bytes: bytes
    stderr_bytes: bytes
    truncated: bool
    """Whether the middle of a stream was dropped because it was over the output limit."""
    duration: float
    """Seconds from the start of the command to its end."""

    @property
    def stdout(self) -> str:
        """Standard output decoded as UTF-8, with U+FFFD for what is not."""
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """Standard error decoded as UTF-8, with U+FFFD for what is not."""
        return self.stderr_bytes.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a command may run, how much output is kept, and whether failing raises."""

    timeout: float | None = None
    check: bool = False
    output: int | None = OUTPUT_LIMIT


Ready = Callable[[], Awaitable[Callable[[Output], Awaitable[int]]]]
"""Prepares a command (starts its sandbox); what it returns runs the command."""


class Process(Operation[ProcessResult]):
    """A command in a sandbox: an Operation whose result is a ProcessResult.

    A non-zero exit is a result unless `check=True` was given. Running past the timeout kills
    the whole process tree and raises CommandTimeoutError with the output so far. Cancelling
    kills the tree too.
    """

    def __init__(
        self,
        argv: tuple[str, ...],
        ready: Ready,
        limits: Limits,
        stdin: Stdin | None = None,
    ) -> None:
        self.argv = argv
        self.stdout = OutputStream(limits.output)
        self.stderr = OutputStream(limits.output)
        self.stdin: Stdin | NoStdin = stdin or NoStdin()
        self._limits = limits
        self._returncode: int | None = None
        self._kill_requested = False
        self._kill_scope: anyio.CancelScope | None = None
        super().__init__(self._run(ready))

    @property
    def returncode(self) -> int | None:
        """The exit status, or None while the command runs or where it did not come to an end."""
        return self._returncode

    def poll(self) -> int | None:
        """Return the exit status if the command has ended, else None."""
        return self._returncode

    def kill(self) -> None:
        """Kill the command's whole process tree; the result then has returncode 137."""
        self._background.call_soon_threadsafe(self._kill)

    def _kill(self) -> None:
        self._kill_requested = True
        if self._kill_scope is not None:
            self._kill_scope.cancel()

    async def _run(self, ready: Ready) -> ProcessResult:
        async def output(stream: StreamName, chunk: bytes) -> None:
            await (self.stdout if stream == "stdout" else self.stderr)._feed(chunk)

        started = time.monotonic()
        returncode, timed_out = _KILLED, False
        try:
            with anyio.CancelScope() as self._kill_scope:
                if self._kill_requested:
                    self._kill_scope.cancel()
                run = await ready()
                started = time.monotonic()
                with anyio.move_on_after(self._limits.timeout) as timer:
                    returncode = await run(output)
                timed_out = timer.cancelled_caught
        finally:
            self.stdout._end()
            self.stderr._end()
            if isinstance(self.stdin, Stdin):
                self.stdin._end()
        result = ProcessResult(
            self.argv,
            returncode,
            self.stdout._value(),
            self.stderr._value(),
            self.stdout.truncated or self.stderr.truncated,
            time.monotonic() - started,
        )
        self._returncode = returncode
        if timed_out:
            message = f"{_shown(self.argv)} ran past its timeout of {self._limits.timeout:g} s and was killed"
            raise CommandTimeoutError(message, result=result)
        if self._limits.check and returncode:
            tail = result.stderr.strip().rsplit("\n", 1)[-1][-200:]
            message = f"{_shown(self.argv)} exited with status {returncode}"
            raise CommandFailedError(f"{message}: {tail}" if tail else message, result=result)
        return result


def _shown(argv: tuple[str, ...]) -> str:
    text = " ".join(argv)
    return repr(text if len(text) <= 80 else text[:77] + "...")
