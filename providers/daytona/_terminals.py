"""The terminals of a sandbox that are kept: each with a shell of ours that awaits a command."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio

from sandboxkit.errors import SandboxError
from sandboxkit.providers.daytona._terminal import Terminal, TerminalEnded

__all__ = ["Terminals"]

_MOST = 8
_IDLE_SECONDS = 60.0
_BRIEFLY = 2.0
"""Seconds that those above `_MOST` are kept, for the next wave of commands."""
_SETTLE_SECONDS = 1.0
"""How long what a command left behind may hold its terminal; then the terminal is given up."""
_SOON = 0.05
"""Seconds to wait for a terminal to settle before a new one is the quicker way."""
_FRESH = 1.0
"""Seconds after which one that said nothing is asked whether it still hears."""


class Terminals:
    """A few for a minute, others briefly; a terminal on which anything is odd is ended."""

    def __init__(self, patience: float) -> None:
        """`patience`: seconds that a kept shell may take to answer."""
        self._patience = patience
        self._kept: list[_Kept] = []
        self._watches: set[asyncio.Task[None]] = set()
        self._closed = False

    def keep(self, terminal: Terminal, settle: Callable[[], Awaitable[bool]]) -> None:
        """Take over a terminal; it is of use once `settle` has returned True."""
        idle = _IDLE_SECONDS if len(self._kept) < _MOST else _BRIEFLY
        kept = _Kept(terminal, settle, idle)
        task = asyncio.create_task(kept.watch())
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)
        task.add_done_callback(lambda _: self._forget(kept))
        self._kept.append(kept)
        if self._closed:
            self.give_up()

    async def take(self, mark: str) -> Terminal | None:
        """One whose shell hears us, if there is any; its next record may carry `mark`."""
        while self._kept:
            places = reversed(range(len(self._kept)))
            settled = (place for place in places if self._kept[place].settled)
            terminal = await self._kept.pop(next(settled, 0)).take()
            if terminal is None:
                continue
            try:
                if await self._hears(terminal, mark):
                    return terminal
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await terminal.end()
                raise
            await terminal.close()
        return None

    def give_up(self) -> None:
        """End all that are kept."""
        for kept in self._kept:
            kept.give_up()
        self._kept.clear()

    async def aclose(self) -> None:
        """End all that are kept, and all that will be given."""
        self._closed = True
        self.give_up()
        if self._watches:
            await asyncio.wait(self._watches)

    def _forget(self, kept: "_Kept") -> None:
        if kept in self._kept:
            self._kept.remove(kept)

    async def _hears(self, terminal: Terminal, mark: str) -> bool:
        if anyio.current_time() - terminal.heard < _FRESH:
            return True
        expected = f"\036-{mark}:p\036".encode()
        said = b""
        try:
            with anyio.fail_after(self._patience):
                if not await terminal.send(f"p {mark}\n".encode()):
                    return False
                while len(said) < len(expected):
                    said += await terminal.read()
        except (SandboxError, TerminalEnded, TimeoutError):
            return False  # no command has been sent, so another terminal will do
        return said == expected


class _Kept:
    """One of them, watched: pings are answered, and whatever else it says makes it unfit."""

    def __init__(
        self, terminal: Terminal, settle: Callable[[], Awaitable[bool]], idle: float
    ) -> None:
        self._terminal, self._settle, self._idle = terminal, settle, idle
        self.settled = False
        self._known, self._left = anyio.Event(), anyio.Event()
        self._watching = anyio.CancelScope()
        self._taken = False

    async def take(self) -> Terminal | None:
        """The terminal, which is the caller's from now on; None where it is unfit."""
        try:
            with anyio.move_on_after(_SOON):
                await self._known.wait()
            self._taken = self.settled
        finally:
            self._watching.cancel()
        with anyio.CancelScope(shield=True):
            await self._left.wait()
        return self._terminal if self._taken and self._watching.cancelled_caught else None

    def give_up(self) -> None:
        """End it soon."""
        self._watching.cancel()

    async def watch(self) -> None:
        """Until it is taken or ends: which it does by itself after a while."""
        try:
            with self._watching:
                with anyio.fail_after(_SETTLE_SECONDS):
                    self.settled = await self._settle()
                self._known.set()
                with anyio.move_on_after(self._idle if self.settled else 0):
                    while not await self._terminal.read():
                        pass
        except (SandboxError, TerminalEnded, TimeoutError):
            pass  # no command is concerned
        self._known.set()
        self._left.set()
        if not (self._taken and self._watching.cancelled_caught):
            await self._terminal.end()
