"""The processes of a terminal: its bash, what it prints, and the reports that come beside that."""

import errno
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from sandboxkit._operation import Operation
from sandboxkit._process import Process
from sandboxkit.errors import (
    CommandStartError,
    CommandTimeoutError,
    SandboxError,
    TerminalError,
)
from sandboxkit.terminal import _scripts
from sandboxkit.terminal._unread import Unread
from sandboxkit.types import PtySize

if TYPE_CHECKING:
    from sandboxkit._sandbox import Sandbox

_CALL_SECONDS = 60.0
_END_SECONDS, _CLOSE_SECONDS = 10.0, 30.0
_MARK_SECONDS = 2.0
"""Without output after a report, until no more of what was printed before it is waited for."""
_KEPT = 1 << 16
_LONGEST_REPORT = 4096
_REPORT = re.compile(
    rb"^(?:begin|place (?P<place>/.{0,4000})"
    rb"|(?P<kind>prompt|ended) (?P<status>\d{1,3}) (?P<pid>\d{1,9}) (?P<mark>[\d.]{1,20}))$",
    re.MULTILINE,
)
_KILLED = 137
_TAKEN_ALONG = frozenset({_KILLED, 147})
"""Statuses that the end of a sandbox gives a command whose shell it has not reached yet: SIGKILL,
SIGSTOP."""


class Shell:
    """An interactive bash of one sandbox. All of it is used on the background loop only."""

    def __init__(
        self,
        sandbox: "Sandbox",
        cwd: str | None,
        env: Mapping[str, str],
        user: str | None,
        size: PtySize,
        limit: int,
    ) -> None:
        self._sandbox, self._cwd, self._env, self._user = sandbox, cwd, env, user
        self._size = size
        token = secrets.token_hex(8)
        self._folder = f"/tmp/.sandboxkit-{token}"
        self._mark = f"\\033]sandboxkit;{token};"
        self.unread = Unread(limit, f"\x1b]sandboxkit;{token};".encode())
        self._place: str | None = None
        self._pid: int | None = None
        self._reports: Process | None = None
        self._bash: Process | None = None
        self._tasks: list[Operation[None]] = []
        self._changed = anyio.Event()
        self._closing, self._closed = anyio.Lock(), False
        self._confirmed = False
        self.began = False
        """Whether what was typed last has begun."""
        self.idle = False
        """Whether the shell waits for a command."""
        self.status = 0
        """Of the last command."""
        self.ended = False
        self.missed = False
        """Whether it had ended before what was typed last had begun."""
        self.failure: SandboxError | None = None
        """Where it ended by a failure of the infrastructure's."""

    async def open(self) -> None:
        """Start it. Raises CommandStartError where the sandbox lacks what it needs."""
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
                env=self._env,
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
            said = self.unread.look().decode(errors="replace").strip()[-500:]
            raise CommandStartError(f"the shell of a terminal ended at once: {said}", errno=None)

    async def store(self, command: str) -> str | None:
        """Hand a command over, for `run`; return what is wrong with its syntax, if anything."""
        stored = await self._exec(_scripts.STORE, stdin=command, timeout=_CALL_SECONDS)
        if stored.returncode == 99:
            self.ended = True
            raise TerminalError(
                f"the terminal cannot hand over the command: {stored.stderr.strip()}", ended=True
            )
        return stored.stdout if stored.returncode else None

    async def run(self) -> None:
        """Run the stored command."""
        assert self._place is not None
        self.idle = self.began = False
        await self._write(_scripts.typed(self._place, self.status))

    async def type(self, data: bytes) -> None:
        """Type into the terminal; what waits there takes it, be it the shell."""
        if self.idle:
            self.idle, self.began = False, True
        await self._write(data)

    async def interrupt(self) -> None:
        """Type Ctrl-C, once what was typed before has begun: it would be thrown away."""
        with anyio.move_on_after(_MARK_SECONDS):
            while not self.began and not self.ended:
                await self.change()
        await self._write(b"\x03")

    async def kill(self) -> None:
        """Kill what has the terminal's foreground, but for the shell."""
        await self._exec(_scripts.KILL, str(self._pid), timeout=_CALL_SECONDS)

    async def resize(self, size: PtySize) -> None:
        """Tell the terminal's programs its new size."""
        if self._bash is not None:
            with suppress(BrokenPipeError):
                await self._bash.stdin.resize(size)

    async def close(self) -> None:
        """End the shell and all that it started, and remove its folder. Idempotent."""
        self.ended = True
        self._notify()
        async with self._closing:
            if self._closed:
                return
            with anyio.move_on_after(_CLOSE_SECONDS):
                await self._close()
            for task in self._tasks:
                task.cancel()
            self._closed = True

    async def confirm(self) -> None:
        """See whether what ended did so alone: a sandbox that ends takes its processes one by one."""
        if not self.ended and (self.status not in _TAKEN_ALONG or not self.idle):
            return
        if not self._confirmed and self.failure is None:
            try:
                await self._sandbox.exec(["true"], user=self._user, timeout=_CALL_SECONDS)
            except (CommandStartError, CommandTimeoutError):
                pass  # of the sandbox's own making
            except SandboxError as error:
                self.failure = error
            self._confirmed = self.ended

    async def _close(self) -> None:
        if self._bash is not None and self._bash.done() and self.failure is None:
            with suppress(SandboxError):
                await self._exec(_scripts.SWEEP, timeout=_END_SECONDS)
        elif self._bash is not None:
            self._bash.kill()
            await _over(self._bash)
        if self._reports is not None:
            with suppress(BrokenPipeError):
                await self._reports.stdin.close()
            with anyio.move_on_after(_END_SECONDS):
                await _over(self._reports)
            self._reports.kill()

    async def change(self) -> None:
        """Wait until more has come of it."""
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

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
            await self._bash.stdin.write(data)  # else it has ended, which will be seen

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
            for report in _REPORT.finditer(whole):  # anybody can write here, and much
                await self._heard(report)
        await self._over(process)

    async def _heard(self, report: re.Match[bytes]) -> None:
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
        # Else the shell says so again, of a command before the one that was typed.

    async def _over(self, process: Process) -> None:
        """One of the processes came to its end, which only its sandbox can have brought about."""
        try:
            result = await process
        except SandboxError as error:
            self.failure = self.failure or _explained(error)
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


def _explained(error: SandboxError) -> SandboxError:
    if not isinstance(error, CommandStartError) or error.errno != errno.ENOENT:
        return error
    if "'bash'" not in str(error):
        return error
    return CommandStartError(
        f"{error}: a terminal needs bash, stty and mkfifo in the image; use an image that has them, "
        "or exec(['sh'], pty=True)",
        errno=error.errno,
        provider=error.provider,
        sandbox_id=error.sandbox_id,
    )
