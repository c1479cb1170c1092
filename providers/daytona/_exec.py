"""One command in a sandbox: over a kept line, or on a terminal of its own."""

import asyncio
import secrets
import shlex

from sandboxkit.errors import ConfigurationError
from sandboxkit.provider import Output, StreamName
from sandboxkit.providers._hosted.command import Wrapped, wrap
from sandboxkit.providers._hosted.kept import orders
from sandboxkit.providers._hosted.kept import running as kept
from sandboxkit.providers._hosted.kept.running import ShellEnded
from sandboxkit.providers.daytona._account import NAME
from sandboxkit.providers.daytona._machine import Machine
from sandboxkit.providers.daytona._scripts import RUN_ON_TERMINAL
from sandboxkit.types import Command

__all__ = ["ShellEnded", "run"]


async def run(machine: Machine, command: Command, output: Output) -> int:
    """See `Provider.exec`; raises ShellEnded too, when nothing of the command is left."""
    if command.user not in (None, machine.user):
        raise ConfigurationError(
            f"provider 'daytona' cannot honour user={command.user!r} for one command: all run as "
            "the sandbox's user; give user= to the sandbox",
            provider=NAME,
            sandbox_id=machine.id,
        )
    mark = secrets.token_hex(16)
    kind = kept.Running if command.pty is None else _OnTerminal
    return await kept.run(
        kind(machine, command, output, mark), machine, wrap(command, mark, NAME), mark
    )


class _OnTerminal(kept.Running):
    """A command on a terminal, which has no other use."""

    def __init__(self, machine: Machine, command: Command, output: Output, mark: str) -> None:
        super().__init__(machine, command, output, mark)
        self._begun = asyncio.Event()

    async def open(self) -> None:
        await self._connect()

    async def leave(self) -> None:
        await self.line.end()

    async def _begin(self, wrapped: Wrapped, has_input: bool) -> None:
        await self._host.enter(self.line, self._mark)
        lines = (f"_mark={self._mark}", orders.enter(wrapped), f"set -- {shlex.join(wrapped.argv)}")
        await self.line.write(orders.sized("\n".join((*lines, RUN_ON_TERMINAL))))

    async def _obey(self, word: bytes) -> None:
        if word == b"t":
            self._begun.set()
        else:
            await super()._obey(word)

    async def _deliver(self, name: StreamName, data: bytes) -> None:
        if self._begun.is_set() and self._status is None:
            await self._output("stdout", data)

    async def _write(self, data: bytes) -> None:
        await self._begun.wait()
        await self.line.write(data)

    async def _end_input(self) -> None:
        """A terminal's input has no end."""
