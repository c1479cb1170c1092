"""The processes of a terminal: its bash, its output, and the separate stream of status reports."""

import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from sandboxkit._operation import Operation
from sandboxkit._process import Process
from sandboxkit.errors import CommandStartError, SandboxError, TerminalError
from sandboxkit.terminal import _scripts
from sandboxkit.terminal._managed import CALL_SECONDS, END_SECONDS, Processes
from sandboxkit.terminal._unread import UnreadOutput
from sandboxkit.types import PtySize

if TYPE_CHECKING:
    from sandboxkit._sandbox import Sandbox

_MARK_SECONDS = 2.0
"""After this time (s) without output, a status report is accepted although its mark has not arrived."""
_KEPT = 1 << 16
_LONGEST_REPORT = 4096
_REPORT = re.compile(
    rb"^(?:begin|place (?P<place>/.{0,4000})"
    rb"|(?P<kind>prompt|ended) (?P<status>\d{1,3}) (?P<pid>\d{1,9}) (?P<mark>[\d.]{1,20}))$",
    re.MULTILINE,
)
_KILLED = 137
_TAKEN_ALONG = frozenset({_KILLED, 147})
"""Statuses (SIGKILL, SIGSTOP) of a command that a sandbox's end killed before it killed the shell."""


class Shell(Processes):
    """An interactive bash in a sandbox; used on the background loop only."""

    _needs = (
        "a terminal needs bash, stty and mkfifo in the image; use an image that has them, or "
        "exec(['sh'], pty=True)"
    )

    def __init__(
        self,
        sandbox: "Sandbox",
        cwd: str | None,
        env: Mapping[str, str],
        user: str | None,
        size: PtySize,
        limit: int,
    ) -> None:
        super().__init__(sandbox, "bash", user, None)
        self._cwd, self._variables, self._size = cwd, env, size
        token = secrets.token_hex(8)
        self._folder = f"/tmp/.sandboxkit-{token}"
        self._mark = f"\\033]sandboxkit;{token};"
        self.unread = UnreadOutput(limit, f"\x1b]sandboxkit;{token};".encode())
        self._place: str | None = None
        self._pid: int | None = None
        self._reports: Process | None = None
        self._bash: Process | None = None
        self._confirmed = False
        self.began = False
        """Whether the command that was typed last has begun."""
        self.idle = False
        """Whether the shell waits for a command."""
        self.status = 0
        """The status of the last command."""
        self.missed = False
        """Whether the shell ended before the command that was typed last began."""

    async def open(self) -> None:
        """Start the shell. Raises CommandStartError if the sandbox lacks a program that it needs."""
        self._reports = self._exec(
            _scripts.REPORTS,
            self._mark,
            _scripts.BEGIN,
            _scripts.END,
            _scripts.PROMPT,
            stdin=True,
        )
        self._tasks.append(Operation(self._listen(self._reports)))
        while self._place is None and not self.ended:
            await self.change()
        if self._place is not None:
            self._bash = self._sandbox.exec(
                ["bash", "-c", _scripts.SHELL, "bash", self._folder, self._mark],
                cwd=self._cwd,
                env=self._variables,
                user=self._user,
                pty=self._size,
                output_limit=_KEPT,
            )
            self._tasks.append(Operation(self._watch(self._bash)))
        while not self.idle and not self.ended:
            await self.change()
        if self.ended:
            await self.confirm()
            if self.failure is not None:
                raise self.failure
            output = self.unread.look().decode(errors="replace").strip()[-500:]
            raise CommandStartError(f"the shell of a terminal ended at once: {output}", errno=None)

    async def store(self, command: str) -> str | None:
        """Store a command in the sandbox for `run`; return bash's message if its syntax is wrong, else None.

        Raises TerminalError if it cannot be stored.
        """
        stored = await self._exec(_scripts.STORE, stdin=command, timeout=CALL_SECONDS)
        if stored.returncode == 99:
            self.ended = True
            raise TerminalError(
                f"the terminal cannot store the command: {stored.stderr.strip()}", ended=True
            )
        return stored.stdout if stored.returncode else None

    async def run(self) -> None:
        """Run the stored command."""
        assert self._place is not None
        self.idle = self.began = False
        if self.ended:  # while the command was stored
            self.missed = True
            return
        await self._write(_scripts.typed(self._place, self.status))

    async def type(self, data: bytes) -> None:
        """Type into the terminal; the running command reads the data, or the shell if it is idle."""
        if self.idle:
            self.idle, self.began = False, True
        await self._write(data)

    async def interrupt(self) -> None:
        """Type Ctrl-C, but wait (2 s at most) until the last command has begun, because Ctrl-C discards
        typed input."""
        with anyio.move_on_after(_MARK_SECONDS):
            while not self.began and not self.ended:
                await self.change()
        await self._write(b"\x03")

    async def kill(self) -> None:
        """Kill the terminal's foreground process group, unless it is the shell's."""
        await self._exec(_scripts.KILL, str(self._pid), timeout=CALL_SECONDS)

    async def resize(self, size: PtySize) -> None:
        """Set the size of the terminal."""
        if self._bash is not None:
            with suppress(BrokenPipeError):
                await self._bash.stdin.resize(size)

    async def confirm(self) -> None:
        """If the shell or its command was killed, check whether the sandbox itself is ending.

        If so, set `failure`.
        """
        if not self.ended and (self.status not in _TAKEN_ALONG or not self.idle):
            return
        if not self._confirmed and self.failure is None:
            await self._confirm()
            self._confirmed = self.ended

    async def _close(self, at_once: bool) -> None:
        if self._bash is not None and self._bash.done() and self.failure is None:
            with suppress(SandboxError):
                await self._exec(_scripts.SWEEP, timeout=END_SECONDS)
        elif self._bash is not None:
            self._bash.kill()
            await _over(self._bash)
        if self._reports is not None:
            with suppress(BrokenPipeError):
                await self._reports.stdin.close()
            with anyio.move_on_after(END_SECONDS):
                await _over(self._reports)
            self._reports.kill()

    def _exec(
        self,
        script: str,
        *arguments: str,
        stdin: str | bool | None = None,
        timeout: float | None = None,
    ) -> Process:
        return self._sandbox.exec(
            ["bash", "-c", script, "bash", self._folder, *arguments],
            user=self._user,
            stdin=stdin,
            timeout=timeout,
            output_limit=_KEPT,
        )

    async def _write(self, data: bytes) -> None:
        assert self._bash is not None
        with anyio.CancelScope(shield=True), suppress(BrokenPipeError):
            await self._bash.stdin.write(data)  # fails if bash has ended, which _watch notices

    async def _watch(self, process: Process) -> None:
        while (chunk := await process.stdout._next()) is not None:
            self.unread.feed(chunk)
            self._notify()
        self.unread.finish()
        await self._over(process)

    async def _listen(self, process: Process) -> None:
        rest = b""
        while (chunk := await process.stdout._next()) is not None:
            whole, _, rest = (rest + chunk).rpartition(b"\n")
            rest = rest[-_LONGEST_REPORT:]
            for report in _REPORT.finditer(whole):  # any process can write here, in any amount
                await self._apply(report)
        await self._over(process)

    async def _apply(self, report: re.Match[bytes]) -> None:
        if (place := report["place"]) is not None and self._place is None:
            self._place = place.decode(errors="surrogateescape")
        elif report["kind"] is not None:
            await self._reported(report)
        elif place is None:
            self.began = True
        self._notify()

    async def _reported(self, report: re.Match[bytes]) -> None:
        while not self.unread.marked(report["mark"]) and not self.ended:
            with anyio.move_on_after(_MARK_SECONDS) as silence:
                await self.change()
            if silence.cancelled_caught:
                break
        status = int(report["status"])
        if report["kind"] == b"ended":
            self.status, self.ended, self.missed = status, True, not self.began
        elif self.began or self._pid is None:
            self._pid, self.status, self.idle = int(report["pid"]), status, True
        # Otherwise the report repeats an earlier command's: the typed one has not begun yet.

    async def _over(self, process: Process) -> None:
        """Record the end of one of the processes, which only a program in the sandbox can cause."""
        try:
            result = await process
        except SandboxError as error:
            self.failure = self.failure or self._explained(error)
        else:
            if not self.ended:
                self.status = _KILLED
                if self._pid is None:
                    self.unread.feed(result.stderr_bytes)
        self.ended = True
        self._notify()


async def _over(process: Process) -> None:
    with suppress(SandboxError):
        await process
