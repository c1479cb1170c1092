"""Terminal: a bash that lasts, on a real terminal of a sandbox."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import anyio

from sandboxkit import _arguments
from sandboxkit._operation import Operation
from sandboxkit.errors import TerminalError
from sandboxkit.terminal._lasting import Lasting
from sandboxkit.terminal._result import Expected, TerminalResult
from sandboxkit.terminal._shell import Shell
from sandboxkit.types import PtySize

if TYPE_CHECKING:
    from sandboxkit._sandbox import Sandbox

SIZE = PtySize(rows=50, cols=160)
ENV = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "MANPAGER": "cat"}
"""No colours and no pagers, which wait for keys. `env` may say otherwise."""
_PAUSE = 0.02
"""Seconds between two looks at output that comes in small pieces."""


class Terminal(Lasting[Shell]):
    """A bash of one sandbox that lasts. Made by `Sandbox.terminal()`; it starts on first use.

    Commands run in that shell itself: directory, variables, functions, options, jobs and what
    `source` brings last until `close()`, which ends the shell and all that it started. Every
    call returns at once with an Operation. Cancelling one ends the waiting, not the command.

    One command runs at a time. While it runs, `wait`, `send`, `expect`, `interrupt` and `kill`
    are about it, and `run` raises TerminalError. Where the shell has ended, which only what ran
    in it can do, a result says so, and later calls raise TerminalError with `ended` set. Every
    other error is the infrastructure's.
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
            None if cwd is None else _arguments.path(cwd, "cwd"),
            {**ENV, **_arguments.env(env)},
            None if user is None else _arguments.text("user", user),
            SIZE if size is None else _arguments.pty_size("size", size),
            _arguments.size("output_limit", output_limit),
        )
        self._entering = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._held else "not started"
        return f"<Terminal of {self._sandbox!r}, {state}>"

    @property
    def running(self) -> bool:
        """Whether something runs in the shell, as far as has been heard."""
        return self._held is not None and not (self._held.idle or self._held.ended)

    def run(self, command: str, *, timeout: float | None = None) -> Operation[TerminalResult]:
        """Run a command, of any length and number of lines, in the shell itself.

        After `timeout` seconds the result is that it is `running`, with the output so far; it
        goes on. A command that bash cannot read to its end, such as one with a quote too few, is
        not run: its result is status 2 and what bash says. The output may begin with what the
        shell's jobs have printed since the last result.
        """
        text = _command(command)
        timeout = _arguments.patience(timeout)

        async def run() -> TerminalResult:
            shell = await self._started()
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

        return self._operation(run)

    def wait(self, *, timeout: float | None = None) -> Operation[TerminalResult]:
        """Wait for the command that runs, up to `timeout` seconds, 0 for a look.

        The output is what came since the last result. Where nothing runs, the result has the
        status of the last command.
        """
        timeout = _arguments.patience(timeout)

        async def run() -> TerminalResult:
            return await self._result(await self._started(ended=True), timeout)

        return self._operation(run)

    def interrupt(self, *, timeout: float = 2.0) -> Operation[TerminalResult]:
        """Type Ctrl-C, and return how things are once the command ends, or after `timeout` seconds.

        A program may do what it likes with it: Python's prompt goes on, and the result is then
        that it is `running`. See `kill`.
        """
        return self._ending(Shell.interrupt, timeout)

    def kill(self, *, timeout: float = 10.0) -> Operation[TerminalResult]:
        """Kill the foreground job's processes, the shell not among them, and wait as `interrupt`.

        What the shell itself does, such as a loop with Ctrl-C trapped, only `close` ends.
        """
        return self._ending(Shell.kill, timeout)

    def send(self, text: _arguments.Content) -> Operation[None]:
        r"""Type text; `"\n"` is Enter and `"\x04"` Ctrl-D. It is not echoed.

        What runs reads it. Where nothing runs, the shell does: `send("python3\n")` starts a
        program that is not waited for, and `wait` then waits for it.
        """
        data = _arguments.content("text", text)

        async def run() -> None:
            shell = await self._started()
            await shell.type(data)

        return self._operation(run)

    def expect(
        self, pattern: str | re.Pattern[str], *, timeout: float | None = 30.0
    ) -> Operation[Expected]:
        """Wait until what was printed and not returned yet has a match; return it up to there.

        After `timeout` seconds, or at the shell's end, the match is None and nothing is taken.
        """
        wanted = _pattern(pattern)
        timeout = _arguments.patience(timeout)

        async def run() -> Expected:
            shell = await self._started(ended=True)
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

        return self._operation(run)

    def read(self) -> Operation[str]:
        """Return what was printed and not returned yet, without waiting."""

        async def run() -> str:
            shell = await self._started(ended=True)
            return _text(shell.unread.take()[0])

        return self._operation(run)

    def resize(self, size: PtySize) -> Operation[None]:
        """Tell the terminal's programs its new size."""
        size = _arguments.pty_size("size", size)

        async def run() -> None:
            shell = await self._started()
            await shell.resize(size)

        return self._operation(run)

    def _new(self) -> Shell:
        return Shell(self._sandbox, *self._options)

    def _was_closed(self) -> TerminalError:
        return TerminalError(
            "this terminal was closed: open another with sandbox.terminal()", ended=True
        )

    async def _started(self, *, ended: bool = False) -> Shell:
        """The shell, started; `ended` where the caller also has to do with one that has ended."""
        shell = await self._opened()
        _raise_failure(shell)
        if shell.ended and not ended:
            raise _over(shell)
        return shell

    def _ending(
        self, end: Callable[[Shell], Awaitable[None]], timeout: float
    ) -> Operation[TerminalResult]:
        patience = _arguments.patience(timeout)

        async def run() -> TerminalResult:
            shell = await self._started()
            if not shell.idle:
                await end(shell)
            return await self._result(shell, patience)

        return self._operation(run)

    async def _result(self, shell: Shell, patience: float | None) -> TerminalResult:
        with anyio.move_on_after(patience):
            while not shell.idle and not shell.ended:
                await shell.change()
        _raise_failure(shell)
        if shell.ended:
            with anyio.CancelScope(shield=True):
                await shell.close()  # what it has started in the background is still there
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
    # With surrogates for what is no UTF-8, so that the match's end is a place among the bytes.
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
