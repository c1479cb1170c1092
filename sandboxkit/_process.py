"""Process: a command running in a sandbox, and its result."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from sandboxkit._operation import Operation
from sandboxkit._streams import NoStdin, OutputStream, Stdin
from sandboxkit.errors import CommandFailedError, CommandTimeoutError, OutcomeUnknownError
from sandboxkit.types import Ending, Exit, Output, ProcessResult, StreamName

OUTPUT_LIMIT = 10 * 1024 * 1024
_KILLED = Exit(137, Ending.KILLED)  # 128 + SIGKILL


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a command may run, how much output is kept, and whether failing raises."""

    timeout: float | None = None
    check: bool = False
    output: int | None = OUTPUT_LIMIT


Ready = Callable[[], Awaitable[Callable[[Output], Awaitable[Exit]]]]
"""Prepares a command (starts its sandbox); what it returns runs the command."""


class Process(Operation[ProcessResult]):
    """A command in a sandbox: an Operation whose result is a ProcessResult.

    A non-zero exit is a result unless `check=True` was given. Running past the timeout kills
    the whole process tree and raises CommandTimeoutError with the output so far. Cancelling
    kills the tree too. Where nobody can say whether it was killed, or how it ended, that is an
    OutcomeUnknownError, and never one of these.
    """

    def __init__(
        self,
        argv: tuple[str, ...],
        ready: Ready,
        limits: Limits,
        stdin: Stdin | None = None,
    ) -> None:
        self.argv = argv
        self.stdout = OutputStream(limits.output, self._ended_if_interrupted)
        self.stderr = OutputStream(limits.output, self._ended_if_interrupted)
        self.stdin: Stdin | NoStdin = stdin or NoStdin()
        self._limits = limits
        self._returncode: int | None = None
        self._kill_requested = False
        self._kill_scope: anyio.CancelScope | None = None
        super().__init__(self._run(ready))

    @property
    def returncode(self) -> int | None:
        """The exit status, 137 after a kill or a timeout.

        None while the command runs, and for good where it was not started, was cancelled, or
        ended in a way that nobody can say: the result then raises.
        """
        return self._returncode

    def poll(self) -> int | None:
        """Return `returncode` as it is now, without waiting."""
        return self._returncode

    def kill(self) -> None:
        """Kill the command's whole process tree and return at once.

        The result then has returncode 137 and `Ending.KILLED`, unless the command ended first.
        """
        self._background.call_soon_threadsafe(self._kill)

    def _kill(self) -> None:
        self._kill_requested = True
        if self._kill_scope is not None:
            self._kill_scope.cancel()

    async def _run(self, ready: Ready) -> ProcessResult:
        async def output(stream: StreamName, chunk: bytes) -> None:
            await (self.stdout if stream == "stdout" else self.stderr)._feed(chunk)

        started = time.monotonic()
        end, timed_out = _KILLED, False
        try:
            with anyio.CancelScope() as self._kill_scope:
                if self._kill_requested:
                    self._kill_scope.cancel()
                run = await ready()
                started = time.monotonic()
                with anyio.move_on_after(self._limits.timeout) as timer:
                    end = await run(output)
                timed_out = timer.cancelled_caught
        except OutcomeUnknownError as error:
            error.stdout_bytes, error.stderr_bytes = self.stdout._value(), self.stderr._value()
            raise
        finally:
            self.stdout._end()
            self.stderr._end()
            if isinstance(self.stdin, Stdin):
                self.stdin._end()
        returncode = end.status
        result = ProcessResult(
            self.argv,
            returncode,
            self.stdout._value(),
            self.stderr._value(),
            self.stdout.truncated or self.stderr.truncated,
            time.monotonic() - started,
            Ending.TIMED_OUT if timed_out else end.ending,
            end.usage,
        )
        self._returncode = returncode
        if timed_out:
            message = f"{_shown(self.argv)} ran past its timeout of {self._limits.timeout:g} s and was killed"
            raise CommandTimeoutError(message, result=result)
        if self._limits.check and returncode:
            tail = result.stderr.strip().rsplit("\n", 1)[-1][-200:]
            message = f"{_shown(self.argv)} {_ended(end)}"
            raise CommandFailedError(f"{message}: {tail}" if tail else message, result=result)
        return result


def _ended(end: Exit) -> str:
    match end.ending:
        case Ending.SIGNAL:
            return f"was killed by signal {end.status - 128} (status {end.status})"
        case Ending.OUT_OF_MEMORY:
            return f"ran out of the sandbox's memory and was killed (status {end.status})"
        case Ending.KILLED:
            return f"was killed by kill() (status {end.status})"
        case _:
            return f"exited with status {end.status}"


def _shown(argv: tuple[str, ...]) -> str:
    text = " ".join(argv)
    return repr(text if len(text) <= 80 else text[:77] + "...")
