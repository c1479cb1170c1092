"""Process: a command running in a sandbox, and its result."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Self

import anyio

from sandboxkit._calls import _arguments
from sandboxkit._calls._foreign_names import foreign_names
from sandboxkit._calls._streams import NoStdin, OutputStream, Stdin
from sandboxkit._lifecycle import Lifecycle
from sandboxkit._operation import Operation
from sandboxkit.errors import (
    CommandFailedError,
    CommandTimeoutError,
    ConfigurationError,
    OutcomeUnknownError,
    ProviderUnavailableError,
    SandboxError,
)
from sandboxkit.types import Ending, Exit, Output, ProcessResult, StreamName

OUTPUT_LIMIT = 10 * 1024 * 1024
_KILLED = Exit(137, Ending.KILLED)  # 128 + SIGKILL


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """How long a command may run, how much output is kept, and whether failing raises."""

    timeout: float | None = None
    deadline: float | None = None
    check: bool = False
    output: int | None = OUTPUT_LIMIT


Ready = Callable[[], Awaitable[Callable[[Output], Awaitable[Exit]]]]
"""Prepares a command, for example starts its sandbox, and returns the function that runs it."""


def checked_limits(
    timeout: float | None, deadline: float | None, check: bool, output_limit: int | None
) -> CommandLimits:
    """Return the limits of a command; raise ConfigurationError for one that is not valid."""
    return CommandLimits(
        timeout=_arguments.timeout(timeout),
        deadline=None if deadline is None else _arguments.positive("deadline", deadline),
        check=_arguments.flag("check", check),
        output=None if output_limit is None else _arguments.size("output_limit", output_limit),
    )


@foreign_names
class Process(Operation[ProcessResult]):
    """A command in a sandbox: an Operation whose result is a ProcessResult.

    A non-zero exit is a result unless `check=True` was given. A command that exceeds its timeout is
    killed with its whole process tree; the result then raises CommandTimeoutError with the output
    so far. Cancelling kills the tree too. If it is unknown how the command ended, or whether it was
    killed, the result raises OutcomeUnknownError.
    """

    def __init__(
        self,
        argv: tuple[str, ...],
        ready: Ready,
        limits: CommandLimits,
        stdin: Stdin | None = None,
        of: Lifecycle | None = None,
    ) -> None:
        """`ready` prepares the command. `of` is its sandbox if that may have to start first, else None."""
        self.argv = argv
        self.stdout = OutputStream(limits.output, self._ended_if_interrupted)
        self.stderr = OutputStream(limits.output, self._ended_if_interrupted)
        self.stdin: Stdin | NoStdin = stdin or NoStdin()
        self._limits, self._life = limits, of
        self._returncode: int | None = None
        self._kill_requested = False
        self._kill_scope: anyio.CancelScope | None = None
        self._began: float | None = None
        """When the sandbox was running and the command about to start (monotonic seconds)."""
        self._late: SandboxError | None = None
        """The error to raise once the deadline has passed."""
        super().__init__(self._run(ready), of=of)

    def _title(self) -> str:
        return f"Process {_shown(self.argv)}"

    def _no_value(self) -> str:
        return f"{self._title()} is no result yet: use its result(), await it, or iterate over its stdout"

    def _is_dropped(self) -> bool:
        # One that runs may be meant to run until the end, such as a server.
        return self._began is None and super()._is_dropped()

    @property
    def returncode(self) -> int:
        """The exit status, 137 after a kill or a timeout.

        Raises ConfigurationError while the command runs. If there is no status, because the command
        did not start, was cancelled or has an unknown outcome, raises what `result()` raises.
        """
        status = self.poll()
        if status is None:
            raise ConfigurationError(
                f"{_shown(self.argv)} is still running and has no returncode: use result(), which waits for "
                "its end, or poll(), which returns None until then"
            )
        return status

    def poll(self) -> int | None:
        """Return `returncode` without waiting, or None while the command runs."""
        if self.done():
            self.exception() if self._returncode is not None else self.result()
        return self._returncode

    def kill(self) -> Self:
        """Kill the command's whole process tree and return at once: `kill().result()` waits for its end.

        The result then has returncode 137 and `Ending.KILLED`, unless the command ended first.
        """
        self._background.call_soon_threadsafe(self._kill)
        return self

    def _kill(self) -> None:
        self._kill_requested = True
        if self._kill_scope is not None:
            self._kill_scope.cancel()

    def _pass_deadline(self, called: float) -> None:
        """Kill the command, or abandon its start."""
        limit = f"deadline={self._limits.deadline:g} s"
        if self._began is None and self._life is not None:
            self._late = self._life.late(limit)
        else:
            before = (self._began or called) - called
            self._late = ProviderUnavailableError(
                f"{_shown(self.argv)} was killed at its {limit}, of which {before:.1f} s passed before it "
                "started: give it a longer deadline, or a timeout"
            )
        self._kill()

    async def _run(self, ready: Ready) -> ProcessResult:
        async def output(stream: StreamName, chunk: bytes) -> None:
            await (self.stdout if stream == "stdout" else self.stderr)._feed(chunk)

        called, limits, life = time.monotonic(), self._limits, self._life
        late: asyncio.TimerHandle | None = None
        if (seconds := limits.deadline) is not None:
            late = asyncio.get_running_loop().call_later(seconds, self._pass_deadline, called)
        end = _KILLED
        try:
            with anyio.CancelScope() as scope:
                self._kill_scope = scope
                if self._kill_requested:
                    scope.cancel()
                run = await ready()
                self._began = time.monotonic()
                if limits.timeout is None:
                    end = await run(output)
                else:
                    scope.deadline = anyio.current_time() + limits.timeout
                    with nullcontext() if life is None else life.clock.stops(scope):
                        end = await run(output)
            timed_out = scope.cancelled_caught and not self._kill_requested
        except OutcomeUnknownError as error:
            error.stdout_bytes, error.stderr_bytes = self.stdout._value(), self.stderr._value()
            raise
        finally:
            if late is not None:
                late.cancel()
            self.stdout._end()
            self.stderr._end()
            if isinstance(self.stdin, Stdin):
                self.stdin._end()
        if self._late is not None:
            raise self._late
        result = ProcessResult(
            self.argv,
            end.status,
            self.stdout._value(),
            self.stderr._value(),
            self.stdout.truncated or self.stderr.truncated,
            time.monotonic() - (self._began or called),
            Ending.TIMED_OUT if timed_out else end.ending,
            end.usage,
            life.network.refused(self._began or called) if life and life.network else (),
        )
        self._returncode = end.status
        if timed_out:
            message = f"{_shown(self.argv)} ran past its timeout of {self._limits.timeout:g} s and was killed"
            raise CommandTimeoutError(message, result=result)
        if self._limits.check and end.status:
            tail = result.stderr.strip().rsplit("\n", 1)[-1][-200:]
            message = f"{_shown(self.argv)} {_ended(end)}"
            raise CommandFailedError(f"{message}: {tail}" if tail else message, result=result)
        if end.status and end.ending is not Ending.KILLED and not self._is_stopped():
            self._unread = f"{_shown(self.argv)} {_ended(end)}"
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
