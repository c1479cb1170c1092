"""The bash tool: runs scripts in one persistent terminal."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from sandboxkit import (
    CommandStartError,
    CommandTimeoutError,
    ConfigurationError,
    Operation,
    Sandbox,
    TerminalError,
)
from sandboxkit.integrations._tools._clock import Clock
from sandboxkit.integrations._tools._result import ToolError
from sandboxkit.integrations._tools._truncate import truncate_middle
from sandboxkit.terminal import Terminal, TerminalResult

INTERRUPT, END_OF_INPUT = "C-c", "C-d"
"""Special commands of the model: interrupt the running script, or end its input."""

_OUTPUT_LIMIT = 1024 * 1024
_INTERRUPT_SECONDS = 5.0
_QUIET_SECONDS = 1.0
"""Seconds without output after which the response to an input is considered complete."""
_LEAST_WAIT = 0.02
_BUSY = (
    "not run: the previous script is still running. Wait for it with an empty command, stop it "
    "with the command C-c, or type this into it with as_input"
)


@dataclass(frozen=True, slots=True)
class BashResult:
    """The output of one call of the bash tool, and the state of its script."""

    output: str
    """Standard output and standard error as they arrived, without escape sequences."""
    returncode: int | None
    """Exit status; None while the script runs."""
    ended: bool = False
    """Whether the script ended the shell too. The next script gets a new shell."""
    restarted: bool = False
    """Whether this script ran in a new shell, because the previous shell had ended before."""

    @property
    def running(self) -> bool:
        """Whether the script is still running after the timeout. The next call continues with it."""
        return self.returncode is None


class Bash:
    """A persistent bash session in one sandbox: directory, variables, functions and jobs last.

    A script that exceeds `timeout` seconds keeps running. Meanwhile `run` accepts the empty script,
    which waits for more output, and "C-c", which stops the script: with Ctrl-C, then with SIGKILL,
    then by ending the shell. A shell that has ended is replaced by a new one.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        if timeout <= 0:
            raise ConfigurationError(f"timeout={timeout!r} is not a positive number of seconds")
        self._sandbox, self._cwd, self._env = sandbox, cwd, env
        self._timeout = timeout
        self._clock = clock or Clock()
        self._terminal: Terminal | None = self._open()
        self._running = False

    async def run(self, script: str, *, as_input: bool = False) -> BashResult:
        """Run a script or, with `as_input`, type it into the running script.

        Raises ToolError for the model's mistakes. Infrastructure errors are raised unchanged.
        """
        if "\0" in script:
            raise ToolError("the command contains a NUL character")
        try:
            script.encode()
        except UnicodeEncodeError as error:
            raise ToolError(str(error)) from None
        await self._sandbox.start()  # outside the script's timeout
        try:
            return await self._run(script, as_input)
        except asyncio.CancelledError:
            self._drop()
            raise
        except (CommandStartError, CommandTimeoutError) as error:
            # The model removed the directory or bash, or its processes use up a limit.
            raise ToolError(f"the command was not started: {error}") from None
        except TerminalError as error:
            self._drop()
            raise ToolError(f"the command was not started: {error}") from None

    async def close(self) -> None:
        """End the shell and every process in it."""
        terminal, self._terminal, self._running = self._terminal, None, False
        if terminal is not None:
            await terminal.close()

    async def _run(self, script: str, as_input: bool) -> BashResult:
        word = "" if as_input else script.strip()
        terminal = self._terminal
        if not self._running or terminal is None:
            if as_input or word in (INTERRUPT, END_OF_INPUT):
                raise ToolError("no script is running that could receive it")
            return await self._begin(script)
        if word == INTERRUPT:
            return await self._stop(terminal)
        if word not in ("", END_OF_INPUT):
            if terminal.running:
                raise ToolError(_BUSY)
            return await self._begin(script)
        if not terminal.running or not (as_input or word):
            return self._result(await self._follow(terminal))
        await terminal.send("\x04" if word else script.removesuffix("\n") + "\n")
        return self._result(await self._follow(terminal, quiet=_QUIET_SECONDS))

    async def _begin(self, script: str) -> BashResult:
        if self._terminal is None:
            self._terminal = self._open()
        try:
            return self._result(await self._first(self._terminal, script))
        except TerminalError as error:
            if not error.ended:
                raise
        self._drop()
        self._terminal = self._open()
        return self._result(await self._first(self._terminal, script), restarted=True)

    def _open(self) -> Terminal:
        return self._sandbox.terminal(cwd=self._cwd, env=self._env, output_limit=_OUTPUT_LIMIT)

    async def _first(self, terminal: Terminal, script: str) -> list[TerminalResult]:
        await terminal.start()  # outside the script's timeout as well
        return await self._until(terminal, terminal.run(script, timeout=self._timeout))

    async def _follow(
        self, terminal: Terminal, *, quiet: float | None = None
    ) -> list[TerminalResult]:
        patience = self._timeout if quiet is None else min(quiet, self._timeout)
        return await self._until(terminal, terminal.wait(timeout=patience), quiet=quiet)

    async def _until(
        self,
        terminal: Terminal,
        operation: Operation[TerminalResult],
        *,
        quiet: float | None = None,
    ) -> list[TerminalResult]:
        """Collect results until the script ends, prints nothing for `quiet` seconds, or the time is up."""
        deadline = self._clock.time() + self._timeout
        results = [await operation]
        while results[-1].running and (left := deadline - self._clock.time()) > 0:
            if quiet is not None and not results[-1].output_bytes:
                break
            patience = left if quiet is None else min(quiet, left)
            results.append(await terminal.wait(timeout=max(patience, _LEAST_WAIT)))
        return results

    async def _stop(self, terminal: Terminal) -> BashResult:
        results = [await terminal.interrupt(timeout=_INTERRUPT_SECONDS)]
        if results[-1].running:
            results.append(await terminal.kill(timeout=_INTERRUPT_SECONDS))
        if results[-1].running:
            await self.close()
            return BashResult(_joined(results), 137, ended=True)
        return self._result(results)

    def _result(self, results: list[TerminalResult], *, restarted: bool = False) -> BashResult:
        last = results[-1]
        self._running = last.running
        if last.ended:
            self._drop()
        return BashResult(_joined(results), last.returncode, last.ended, restarted)

    def _drop(self) -> None:
        """Close the terminal without waiting; a sandbox that stops ends it anyway."""
        terminal, self._terminal, self._running = self._terminal, None, False
        if terminal is not None:
            terminal.close()


def _joined(results: list[TerminalResult]) -> str:
    return truncate_middle("".join(result.plain for result in results), _OUTPUT_LIMIT)
