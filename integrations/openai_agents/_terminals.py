"""Commands that keep running between an agent's turns, on a PTY or on pipes."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable

from agents.sandbox.errors import PtySessionNotFoundError
from agents.sandbox.session.pty_output import collect_pty_output
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PtyExecUpdate,
    allocate_pty_process_id,
    process_id_to_prune_from_meta,
)

from sandboxkit import CommandStartError, Process, SandboxError
from sandboxkit.integrations.openai_agents import _errors

_UNREAD = 1 << 20
"""Maximum bytes of unread output per command; older output is dropped."""
_KILL_SECONDS = 30.0
NOT_STARTED = 127


class _Terminal:
    """One running command and its unread output."""

    def __init__(self, process: Process, *, tty: bool) -> None:
        self.process, self.tty = process, tty
        self.used = time.monotonic()
        self.unread = bytearray()
        self.dropped = 0
        self.taken: deque[bytes] = deque()
        self.lock, self.changed, self.ended = asyncio.Lock(), asyncio.Event(), asyncio.Event()
        self.status: int | None = None
        self.error: SandboxError | None = None
        self.following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for stream in (self.process.stdout, self.process.stderr):
                    group.create_task(self._read(stream.bytes()))
            self.status = (await self.process).returncode
        except SandboxError as error:
            self.error = error
        finally:
            self.ended.set()
            self.changed.set()

    async def _read(self, pieces: AsyncIterable[bytes]) -> None:
        async for piece in pieces:
            self.unread += piece
            excess = max(0, len(self.unread) - _UNREAD)
            del self.unread[:excess]
            self.dropped += excess

    async def take(self) -> None:
        """Move the unread output to `taken`. The SDK calls this once per update, which limits its size."""
        if self.dropped:
            self.taken.append(b"[%d bytes dropped here]\n" % self.dropped)
        self.taken.append(bytes(self.unread))
        self.unread.clear()
        self.dropped = 0

    def outcome(self) -> tuple[int, bytes]:
        """Return the exit status and a text to append to the output.

        Raises ExecTransportError if the outcome of the command is unknown.
        """
        if self.status is not None:
            return self.status, b""
        error = self.error
        if isinstance(error, CommandStartError) and not error.retryable:
            return NOT_STARTED, f"{error}\n".encode()
        raise _errors.transport(
            self.process.argv, error or SandboxError("the command was abandoned")
        )


class RunningCommands:
    """The running commands of one session, by the session ids that the agent uses."""

    def __init__(self) -> None:
        self._open: dict[int, _Terminal] = {}

    async def open(
        self, process: Process, *, tty: bool, wait_ms: int, max_tokens: int | None
    ) -> PtyExecUpdate:
        """Add a command; return its output after `wait_ms` milliseconds, or at its end if that is sooner.

        At the SDK's limit of commands another one is killed first.
        """
        number = allocate_pty_process_id(set(self._open))
        terminal = _Terminal(process, tty=tty)
        oldest = self._oldest()
        self._open[number] = terminal
        if oldest is not None:
            await _end([oldest])
        return await self._update(number, terminal, wait_ms, max_tokens)

    async def write(
        self, number: int, chars: str, *, wait_ms: int, max_tokens: int | None
    ) -> PtyExecUpdate:
        """Type `chars` into a command and return its output after `wait_ms` milliseconds or at its end.

        Raises PtySessionNotFoundError, and RuntimeError if the command has no terminal to type into.
        """
        terminal = self._open.get(number)
        if terminal is None:
            raise PtySessionNotFoundError(session_id=number)
        if chars and not terminal.tty:
            # The SDK's tool recognizes this error by its message.
            raise RuntimeError("stdin is not available for this process")
        terminal.used = time.monotonic()
        if chars:
            try:
                await terminal.process.stdin.write(chars.encode(errors="replace"))
            except BrokenPipeError:
                pass  # the command has ended, as the update reports
        return await self._update(number, terminal, wait_ms, max_tokens)

    async def close(self) -> None:
        """Kill all commands with their process trees."""
        terminals = list(self._open.values())
        self._open.clear()
        await _end(terminals)

    async def _update(
        self, number: int, terminal: _Terminal, wait_ms: int, max_tokens: int | None
    ) -> PtyExecUpdate:
        output, tokens, closed = await collect_pty_output(
            output_chunks=terminal.taken,
            output_lock=terminal.lock,
            output_notify=terminal.changed,
            is_done=terminal.ended.is_set,
            yield_time_ms=wait_ms,
            max_output_tokens=max_tokens,
            settle_output=terminal.take,
        )
        if not closed:
            return PtyExecUpdate(number, output, None, tokens)
        self._open.pop(number, None)
        status, message = terminal.outcome()
        return PtyExecUpdate(None, output + message, status, tokens)

    def _oldest(self) -> _Terminal | None:
        """If the SDK's limit of commands is reached, remove and return the one to end; else None."""
        if len(self._open) < PTY_PROCESSES_MAX:
            return None
        known = [(number, each.used, each.ended.is_set()) for number, each in self._open.items()]
        number = process_id_to_prune_from_meta(known)
        return None if number is None else self._open.pop(number)


async def _end(terminals: list[_Terminal]) -> None:
    if not terminals:
        return
    for terminal in terminals:
        terminal.process.kill()
    _, late = await asyncio.wait([each.following for each in terminals], timeout=_KILL_SECONDS)
    for task in late:
        task.cancel()
