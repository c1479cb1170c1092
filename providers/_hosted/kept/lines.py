"""The lines of a sandbox that are kept: each to a shell of ours that awaits a command."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio

from sandboxkit.errors import SandboxError
from sandboxkit.provider import StreamName

__all__ = ["Line", "LineEnded", "Lines", "Said"]

_MOST = 8
_IDLE_SECONDS = 60.0
_SETTLE_SECONDS = 1.0
"""How long what a command left behind may hold its line; then the line is given up."""
_SOON = 0.05
"""Seconds to wait for a line to settle before a new one is the quicker way."""
_FRESH = 1.0
"""Seconds after which one that said nothing is asked whether it still hears."""


Said = tuple[StreamName, bytes]
"""The output that it came on, always "stdout" where a line has but one, and what."""


class LineEnded(Exception):
    """The shell at the other end has ended; `status` is what the vendor says of it."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Line(Protocol):
    """A way to a shell in a sandbox and back."""

    heard: float
    """When the other side last said something, as `anyio.current_time` has it."""

    async def send(self, data: bytes) -> bool:
        """Write; False where the line had broken before, and nothing of it was sent."""
        ...

    async def write(self, data: bytes) -> None:
        """Write, as fast as the line takes it; nothing once the shell has ended."""
        ...

    async def read(self) -> Said:
        """Return what the shell says next; raises LineEnded or a typed error. May be cancelled."""
        ...

    async def ping(self, mark: str) -> None:
        """Ask for a sign of life: `read` returns nothing, b"", or a record p of this mark."""
        ...

    async def end(self) -> None:
        """Let the shell end, and close the line."""
        ...

    async def close(self) -> None:
        """Close the line, without a word; the shell goes on, or has ended with its sandbox."""
        ...


class Lines:
    """A few for a minute, others briefly; a line on which anything is odd is ended."""

    def __init__(self, patience: float, briefly: float) -> None:
        """`patience`: seconds that a kept shell may take to answer; `briefly`: that those above
        a few are kept, for the next wave of commands."""
        self._patience, self._briefly = patience, briefly
        self._kept: list[_Kept] = []
        self._watches: set[asyncio.Task[None]] = set()
        self._closed = self._gone = False

    def keep(self, line: Line, settle: Callable[[], Awaitable[bool]]) -> None:
        """Take over a line; it is of use once `settle` has returned True."""
        idle = _IDLE_SECONDS if len(self._kept) < _MOST else self._briefly
        kept = _Kept(line, settle, idle)
        task = asyncio.create_task(kept.watch())
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)
        task.add_done_callback(lambda _: self._forget(kept))
        self._kept.append(kept)
        if self._closed:
            self.give_up()

    async def take(self, mark: str) -> Line | None:
        """One whose shell hears us, if there is any; its next record may carry `mark`."""
        while self._kept:
            places = reversed(range(len(self._kept)))
            settled = (place for place in places if self._kept[place].settled)
            line = await self._kept.pop(next(settled, 0)).take()
            if line is None:
                continue
            try:
                if await self._hears(line, mark):
                    return line
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await line.end()
                raise
            await line.close()
        return None

    def give_up(self) -> None:
        """End all that are kept."""
        for kept in self._kept:
            kept.give_up(in_words=not self._gone)
        self._kept.clear()

    async def aclose(self, *, gone: bool = False) -> None:
        """End all that are kept, and all that will be given; their sandbox may be `gone`."""
        self._closed, self._gone = True, gone
        self.give_up()
        if self._watches:
            await asyncio.wait(self._watches)

    def _forget(self, kept: "_Kept") -> None:
        if kept in self._kept:
            self._kept.remove(kept)

    async def _hears(self, line: Line, mark: str) -> bool:
        if anyio.current_time() - line.heard < _FRESH:
            return True
        expected = f"\036-{mark}:p\036".encode()
        said = b""
        try:
            with anyio.fail_after(self._patience):
                if not await line.send(f"p {mark}\n".encode()):
                    return False
                while len(said) < len(expected):
                    said += (await line.read())[1]
        except (SandboxError, LineEnded, TimeoutError):
            return False  # no command has been sent, so another line will do
        return said == expected


class _Kept:
    """One of them, watched: pings are answered, and whatever else it says makes it unfit."""

    def __init__(self, line: Line, settle: Callable[[], Awaitable[bool]], idle: float) -> None:
        self._line, self._settle, self._idle = line, settle, idle
        self.settled = False
        self._known, self._left = anyio.Event(), anyio.Event()
        self._watching = anyio.CancelScope()
        self._taken = False
        self._in_words = True

    async def take(self) -> Line | None:
        """The line, which is the caller's from now on; None where it is unfit."""
        try:
            with anyio.move_on_after(_SOON):
                await self._known.wait()
            self._taken = self.settled
        finally:
            self._watching.cancel()
        with anyio.CancelScope(shield=True):
            await self._left.wait()
        return self._line if self._taken and self._watching.cancelled_caught else None

    def give_up(self, *, in_words: bool) -> None:
        """End it soon, and tell its shell so."""
        self._in_words = in_words
        self._watching.cancel()

    async def watch(self) -> None:
        """Until it is taken or ends: which it does by itself after a while."""
        try:
            with self._watching:
                with anyio.fail_after(_SETTLE_SECONDS):
                    self.settled = await self._settle()
                self._known.set()
                with anyio.move_on_after(self._idle if self.settled else 0):
                    while not (await self._line.read())[1]:
                        pass
        except TimeoutError:
            pass  # no command is concerned
        except (SandboxError, LineEnded):
            self._in_words = False  # nobody would hear them
        self._known.set()
        self._left.set()
        if not (self._taken and self._watching.cancelled_caught):
            await (self._line.end() if self._in_words else self._line.close())
