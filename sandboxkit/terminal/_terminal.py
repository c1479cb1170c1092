"""Terminal: a persistent bash session on a PTY in a sandbox."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import anyio

from sandboxkit._calls import _arguments
from sandboxkit._calls._arguments import explained
from sandboxkit._calls._foreign_names import foreign_names
from sandboxkit._operation import Operation
from sandboxkit.errors import TerminalError
from sandboxkit.terminal._managed import ManagedProcess
from sandboxkit.terminal._result import Expected, TerminalResult
from sandboxkit.terminal._shell import Shell
from sandboxkit.types import PtySize

if TYPE_CHECKING:
    from sandboxkit._sandbox import Sandbox

T = TypeVar("T")

SIZE = PtySize(rows=50, cols=160)
ENV = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "MANPAGER": "cat"}
"""Default variables that disable colours, and pagers, which wait for keys; `env` overrides them."""
_PAUSE = 0.02
"""Seconds between two searches of output that arrives in small pieces."""


@explained
@foreign_names
class Terminal(ManagedProcess[Shell]):
    """A persistent bash in a sandbox. Made by `Sandbox.terminal()`; it starts on first use.

    Commands run in the shell itself: the directory, variables, functions, options, jobs and the
    effects of `source` persist between commands. `close()` ends the shell and every process that
    it started. Every call returns an Operation at once; cancelling it ends the wait, not the
    command.

    Commands run one at a time. During a command, `wait`, `send`, `expect`, `interrupt` and `kill`
    act on it, and `run` raises TerminalError. If a program ends the shell, the result has `ended`
    set, and later calls raise TerminalError with `ended` set. Every other error is an
    infrastructure failure.
    """

    _name, _late = "terminal", "the shell of a terminal did not start"

    def __init__(
        self,
        sandbox: "Sandbox",
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        size: PtySize | None = None,
        output_limit: int = 1 << 20,
    ) -> None:
        super().__init__(sandbox)
        self._options = (
            _arguments.cwd(cwd),
            {**ENV, **_arguments.env(env)},
            _arguments.user(user),
            SIZE if size is None else _arguments.pty_size("size", size),
            _arguments.size("output_limit", output_limit),
        )
        self._entering = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._held else "not started"
        return f"<Terminal of {self._sandbox!r}, {state}>"

    @property
    def running(self) -> bool:
        """Whether a command runs in the shell, as last reported."""
        return self._held is not None and not (self._held.idle or self._held.ended)

    def run(self, command: str, *, timeout: float | None = None) -> Operation[TerminalResult]:
        """Run a command, of any length and number of lines, in the shell itself.

        A command that still runs after `timeout` seconds keeps running: the result is `running`, with
        the output so far. A command that bash cannot parse, such as one with an unclosed quote, is not
        run: the result has status 2 and bash's message. The output may begin with output of background
        jobs since the last result. Raises TerminalError while another command runs.
        """
        text = _command(command)
        timeout = _arguments.patience(timeout)

        async def run(shell: Shell) -> TerminalResult:
            if self._entering or not shell.idle:
                raise TerminalError(
                    "a command runs in this terminal: wait(), send() to it, interrupt() or kill() it"
                )
            self._entering = True
            try:
                if (wrong := await shell.store(text)) is not None:
                    return TerminalResult(wrong.encode(), 2)
                await shell.run()
            finally:
                self._entering = False
            result = await self._result(shell, timeout)
            if shell.missed:
                raise _over(shell)
            return result

        return self._with_shell(run)

    def wait(self, *, timeout: float | None = None) -> Operation[TerminalResult]:
        """Wait up to `timeout` seconds for the running command; 0 returns at once.

        The result has the output since the last result. If nothing runs, it has the status of
        the last command.
        """
        timeout = _arguments.patience(timeout)
        return self._with_shell(lambda shell: self._result(shell, timeout), ended=True)

    def interrupt(self, *, timeout: float = 2.0) -> Operation[TerminalResult]:
        """Type Ctrl-C; return the result once the command ends, or after `timeout` seconds.

        A program may handle or ignore Ctrl-C: Python's prompt, for example, keeps running, and so the
        result is `running`. See `kill`.
        """
        return self._ending(Shell.interrupt, timeout)

    def kill(self, *, timeout: float = 10.0) -> Operation[TerminalResult]:
        """Kill the foreground job's processes, but not the shell; then wait as `interrupt` does.

        Only `close` ends code of the shell itself, such as a loop that traps Ctrl-C.
        """
        return self._ending(Shell.kill, timeout)

    def send(self, text: _arguments.Content) -> Operation[None]:
        r"""Type text; `"\n"` is Enter and `"\x04"` Ctrl-D. The text is not echoed.

        The running command reads the text, or the shell if nothing runs: `send("python3\n")`
        starts a program without waiting for it, and `wait` then waits for it.
        """
        data = _arguments.content("text", text)
        return self._with_shell(lambda shell: shell.type(data))

    def expect(
        self, pattern: str | re.Pattern[str], *, timeout: float | None = 30.0
    ) -> Operation[Expected]:
        """Wait until the unread output matches `pattern`; return the output up to the match's end.

        After `timeout` seconds, or if the shell ends, `match` is None and the output stays unread.
        """
        wanted = _pattern(pattern)
        timeout = _arguments.patience(timeout)

        async def run(shell: Shell) -> Expected:
            with anyio.move_on_after(timeout):
                while True:
                    if found := _search(wanted, shell):
                        return found
                    if shell.ended:
                        break
                    await shell.change()
                    await anyio.sleep(_PAUSE)
            _raise_failure(shell)
            return _search(wanted, shell) or Expected(_text(shell.unread.look()), None)

        return self._with_shell(run, ended=True)

    def read(self) -> Operation[str]:
        """Return the unread output, without waiting."""

        async def run(shell: Shell) -> str:
            return _text(shell.unread.take()[0])

        return self._with_shell(run, ended=True)

    def resize(self, size: PtySize) -> Operation[None]:
        """Set the size of the terminal."""
        size = _arguments.pty_size("size", size)
        return self._with_shell(lambda shell: shell.resize(size))

    def _new(self) -> Shell:
        return Shell(self._sandbox, *self._options)

    def _was_closed(self) -> TerminalError:
        return TerminalError(
            "this terminal was closed: open another with sandbox.terminal()", ended=True
        )

    def _with_shell(
        self, work: Callable[[Shell], Awaitable[T]], *, ended: bool = False
    ) -> Operation[T]:
        """Do `work` with the started shell. Raises TerminalError if it has ended, unless `ended` allows that."""

        async def run() -> T:
            shell = await self._opened()
            _raise_failure(shell)
            if shell.ended and not ended:
                raise _over(shell)
            return await work(shell)

        return self._operation(run)

    def _ending(
        self, end: Callable[[Shell], Awaitable[None]], timeout: float
    ) -> Operation[TerminalResult]:
        patience = _arguments.patience(timeout)

        async def run(shell: Shell) -> TerminalResult:
            if not shell.idle:
                await end(shell)
            return await self._result(shell, patience)

        return self._with_shell(run)

    async def _result(self, shell: Shell, patience: float | None) -> TerminalResult:
        with anyio.move_on_after(patience):
            while not shell.idle and not shell.ended:
                await shell.change()
        _raise_failure(shell)
        if shell.ended:
            with anyio.CancelScope(shield=True):
                await shell.close()  # ends background processes that outlived the shell
        await shell.confirm()
        _raise_failure(shell)
        output, dropped = shell.unread.take()
        done = shell.idle or shell.ended
        return TerminalResult(output, shell.status if done else None, dropped, shell.ended)


def _command(command: str) -> str:
    text = _arguments.code("command", command)
    if "\0" in text:
        _arguments.refuse("command", command, "a command without NUL characters")
    return text


def _pattern(pattern: object) -> re.Pattern[str]:
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    if not isinstance(pattern, str):
        _arguments.refuse("pattern", pattern, "a regular expression, as a str or compiled from one")
    try:
        return re.compile(pattern)
    except re.error as error:
        _arguments.refuse("pattern", pattern, f"a regular expression ({error})")


def _search(pattern: re.Pattern[str], shell: Shell) -> Expected | None:
    # Surrogates stand for invalid UTF-8, so that the match's end maps back to a byte offset.
    text = shell.unread.look().decode(errors="surrogateescape")
    match = pattern.search(text)
    if match is None:
        return None
    size = len(text[: match.end()].encode(errors="surrogateescape"))
    return Expected(_text(shell.unread.take(size)[0]), match)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _raise_failure(shell: Shell) -> None:
    if shell.failure is not None:
        raise shell.failure


def _over(shell: Shell) -> TerminalError:
    return TerminalError(
        f"the shell of this terminal has ended with status {shell.status}: "
        "open another with sandbox.terminal()",
        ended=True,
    )
