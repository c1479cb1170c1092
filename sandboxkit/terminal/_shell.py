"""The processes of a terminal: its bash, its output, and the separate stream of status reports.

A terminal is two commands. `SHELL` runs an interactive bash on a PTY, and outlives it. `REPORTS` reads a FIFO, to
which that bash writes when a command begins and how it ends. A command is stored as a file before a line is typed
that runs it, so the output has nothing of all this but marks, which `UnreadOutput` removes.
"""

import re
import secrets
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from sandboxkit._operation import Operation
from sandboxkit._process import Process
from sandboxkit.errors import CommandStartError, SandboxError, TerminalError
from sandboxkit.terminal._managed import CALL_SECONDS, END_SECONDS, Processes
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
            REPORTS,
            self._mark,
            BEGIN,
            END,
            PROMPT,
            stdin=True,
        )
        self._tasks.append(Operation(self._listen(self._reports)))
        while self._place is None and not self.ended:
            await self.change()
        if self._place is not None:
            self._bash = self._sandbox.exec(
                ["bash", "-c", SHELL, "bash", self._folder, self._mark],
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
        stored = await self._exec(STORE, stdin=command, timeout=CALL_SECONDS)
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
        await self._write(typed(self._place, self.status))

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
        await self._exec(KILL, str(self._pid), timeout=CALL_SECONDS)

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
                await self._exec(SWEEP, timeout=END_SECONDS)
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


REPORTS = r"""
umask 077
command -v stty >/dev/null || { echo 'stty: not found' >&2; exit 1; }
mkdir -- "$1" && mkfifo -- "$1/status" || exit 1
printf -v place %q "$1"
text=${3//@PLACE@/"$place"}
printf %s "$text" >"$1/begin"
text=${4//@PLACE@/"$place"}
printf %s "$text" >"$1/end"
text=${5//@PLACE@/"$place"}
printf %s "${text//@MARK@/"$2"}" >"$1/prompt" || exit 1
exec 9<>"$1/status"
printf 'place %s\n' "$place"
cat <&9 &
reports=$!
{
  while read -t 1 -r _ || [ "$?" -gt 128 ]; do [ -p "$1/status" ] || break; done
  kill "$reports"
} <&0 9<&- &
wait "$reports"
kill "$!"
rm -rf -- "$1"
"""
"""Arguments: the folder, the prefix of marks, then BEGIN, END and PROMPT. It prints the reports. It
removes the folder and exits at the end of its input, or if the FIFO is gone."""

BEGIN = r"""
__sandboxkit=$(<@PLACE@/command)
builtin printf 'begin\n' >@PLACE@/status
return "$1"
"""
"""Sourced before a command; $1 is the status of the previous command."""

END = r"""
__sandboxkit_status=$1
unset __sandboxkit
PROMPT_COMMAND='{ . @PLACE@/prompt "$?" || :; } 2>/dev/null'
"""
"""Sourced after a command, unless it was interrupted; $1 is its status."""

PROMPT = r"""
if [[ /dev/stdin -ef @PLACE@/terminal ]]; then
  if [[ -e @PLACE@/flush ]]; then
    command rm -f @PLACE@/flush
    builtin read -r -t 0 && builtin read -r -N 4096 -t 0.05 __sandboxkit
  fi
  unset HISTFILE __sandboxkit
  set +o history +o emacs +o vi || :
  PS1='\[\]' PS2='\[\]'
  export PROMPT_COMMAND='{ . @PLACE@/prompt "$?" || :; } 2>/dev/null'
  command stty sane -echo -onlcr </dev/tty || :
  __sandboxkit_count=$((${__sandboxkit_count-0} + 1))
  builtin printf '@MARK@%s.%s\a' "$$" "$__sandboxkit_count" >/dev/tty || :
  builtin printf 'prompt %s %s %s.%s\n' "${__sandboxkit_status-$1}" "$$" "$$" \
    "$__sandboxkit_count" >@PLACE@/status || :
  unset __sandboxkit_status
fi
"""
"""Sourced before each prompt by every bash on this terminal, and by no other bash.

PS1 prints nothing but is not empty, because some profiles do nothing if it is empty."""

SHELL = r"""
ln -s -- "$(tty)" "$1/terminal" || exit 1
trap : INT QUIT HUP
exec 8>&2 2>/dev/null
PROMPT_COMMAND=". $1/prompt 0" bash --norc --noprofile --noediting -i 2>&8 8>&-
status=$?
printf "$2%s\a" "$$" >/dev/tty
printf 'ended %s 0 %s\n' "$status" "$$" >"$1/status"
while :; do sleep 1000; done
"""
"""Starts the shell and outlives it; killing this process also kills the shell's remaining processes."""

STORE = r"""
cat >"$1/command" || exit 99
LC_ALL=C exec bash --norc -O extglob -n <"$1/command" 2>&1
"""
"""Stores a command and checks its syntax, so that no part of an unparsable command runs."""

KILL = r"""
IFS= read -r stat <"/proc/$2/stat" || exit 0
folder=$1
set -- ${stat##*) }
if [ "$6" -gt 1 ] && [ "$6" != "$3" ]; then
  : >"$folder/flush"
  kill -KILL -- "-$6"
fi
exit 0
"""
"""Kills the foreground process group of the terminal unless it is the shell's own ($2 is its pid).
Input that the group has not read is discarded before the shell can read it."""

SWEEP = r"""
for _ in 1 2 3; do
  for each in /proc/[0-9]*; do
    grep -qsF "$1" "$each/environ" && kill -KILL "${each#/proc/}" 2>/dev/null
  done
done
rm -rf -- "$1"
"""
"""Kills the remaining processes, found by their environment, if the first process was killed."""


def typed(place: str, status: int) -> bytes:
    """Return the line that makes the shell run the stored command, with `$?` set to `status`."""
    then = "||" if status else "&&"
    return (
        f"\x15 {{ . {place}/begin {status}; }} 2>/dev/null{then}"
        f'eval -- "$__sandboxkit";{{ . {place}/end "$?"||:; }} 2>/dev/null\n'
    ).encode()


_LONGEST = 64
"""The longest mark, in bytes after its prefix."""
_REMEMBERED = 16


class UnreadOutput:
    """Output in order of arrival; over `limit` bytes it loses its middle.

    A mark consists of `prefix`, at most 63 bytes, and BEL. It is removed from the output, and proves that all output
    before it has arrived.
    """

    def __init__(self, limit: int, prefix: bytes) -> None:
        self._half, self._limit, self._prefix = limit // 2, limit, prefix
        self._data, self._dropped = bytearray(), False
        self._held = b""  # possibly the beginning of a mark
        self._marks: deque[bytes] = deque(maxlen=_REMEMBERED)

    def feed(self, chunk: bytes) -> None:
        """Add a chunk of terminal output, and extract its marks."""
        data, done = self._held + chunk, 0
        while (at := data.find(self._prefix, done)) >= 0:
            begin = at + len(self._prefix)
            end = data.find(b"\a", begin, begin + _LONGEST)
            if end < 0 and len(data) - begin < _LONGEST:
                break
            if end < 0:
                self._add(data[done:begin])  # too long for a mark, so it is output
                done = begin
            else:
                self._marks.append(data[begin:end])
                self._add(data[done:at])
                done = end + 1
        held = _overlap(data[done:], self._prefix) if at < 0 else len(data) - at
        self._add(data[done : len(data) - held])
        self._held = data[len(data) - held :]

    def finish(self) -> None:
        """Add a possible beginning of a mark as output, because no more data follows."""
        self._add(self._held)
        self._held = b""

    def marked(self, mark: bytes) -> bool:
        """Return whether the mark has arrived; if so, forget it and all earlier marks.

        Each mark counts once, because a shell started by `exec` keeps the pid of the shell that it
        replaces and numbers its marks from 1 again.
        """
        if mark not in self._marks:
            return False
        while self._marks.popleft() != mark:
            pass
        return True

    def look(self) -> bytes:
        """Return all output without removing it."""
        self._trim()
        return bytes(self._data)

    def take(self, size: int | None = None) -> tuple[bytes, bool]:
        """Remove and return the first `size` bytes, or all; also return whether output was dropped."""
        self._trim()
        taken, dropped = bytes(self._data[:size]), self._dropped
        del self._data[: len(taken)]
        self._dropped = dropped and bool(self._data)
        return taken, dropped

    def _add(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > 2 * self._limit:
            self._trim()

    def _trim(self) -> None:
        if len(self._data) > self._limit:
            del self._data[self._limit - self._half : len(self._data) - self._half]
            self._dropped = True


def _overlap(data: bytes, prefix: bytes) -> int:
    """Return how many bytes at the end of `data` are the beginning of `prefix`."""
    for size in range(min(len(data), len(prefix) - 1), 0, -1):
        if data.endswith(prefix[:size]):
            return size
    return 0
