"""Providers and sandboxes that change one thing on its way: a spec, a command, its output or its end."""

import asyncio
import os
import signal
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio

from sandboxkit.errors import CommandStartError, OutcomeUnknownError, ProviderUnavailableError
from sandboxkit.provider import Box, FirstCommand, Output, Provider, StreamName
from sandboxkit.testing.fake import FakeBox, FakeProvider, members, signal_process
from sandboxkit.types import Command, Ending, Exit, PtySize, SandboxSpec, StdinItem


# Any: a class made with `type` has no methods of its own for a type checker.
def making(change: Callable[[SandboxSpec], SandboxSpec], base: Any = FakeProvider) -> Any:
    """A provider that makes another sandbox than it was asked for."""

    async def create(self: Provider, spec: SandboxSpec, first: FirstCommand | None = None) -> Box:
        made: Box = await base.create(self, change(spec), first)
        return made

    return type("Making", (base,), {"create": create})


def killing(kill: Callable[[FakeBox, str, int], Awaitable[None]]) -> type[FakeBox]:
    """A sandbox that kills in its own way the command of a leader that was cancelled."""

    class Killing(FakeBox):
        async def _kill(self, mark: str, leader: int | None) -> None:
            await (super()._kill(mark, None) if leader is None else kill(self, mark, leader))

    return Killing


def changing(
    start: Callable[[FakeBox, Command], Command] = lambda _, command: command,
    end: Callable[[Exit], Exit] = lambda end: end,
    show: Callable[[StreamName, bytes], tuple[StreamName, bytes]] = lambda *shown: shown,
) -> type[FakeBox]:
    """A sandbox that starts another command, or passes on another end or other output than there is."""

    class Changing(FakeBox):
        async def exec(self, command: Command, output: Output) -> Exit:
            async def changed(stream: StreamName, chunk: bytes) -> None:
                await output(*show(stream, chunk))

            command = start(self, command)
            return end(await super().exec(command, changed))

    return Changing


def failing(kind: type[BaseException], answer: Callable[[BaseException], Exit]) -> type[FakeBox]:
    """A sandbox that has another answer where a command fails so."""

    class Failing(FakeBox):
        async def exec(self, command: Command, output: Output) -> Exit:
            try:
                return await super().exec(command, output)
            except kind as error:
                return answer(error)

    return Failing


def importing(code: str) -> type[FakeBox]:
    """A sandbox whose Python programs run this code first."""

    class Importing(FakeBox):
        def _base_env(self) -> dict[str, str]:
            (self.folder / "sitecustomize.py").write_text(code)
            return {**super()._base_env(), "PYTHONPATH": str(self.folder)}

    return Importing


async def _kill_leader(_: FakeBox, mark: str, leader: int) -> None:
    os.kill(leader, signal.SIGKILL)


async def _kill_group(_: FakeBox, mark: str, leader: int) -> None:
    os.killpg(leader, signal.SIGKILL)


async def _kill_box(box: FakeBox, mark: str, leader: int) -> None:
    await FakeBox._kill(box, mark.rpartition(":")[0], leader)


async def _kill_once(_: FakeBox, mark: str, leader: int) -> None:
    for pid in members(mark, leader):
        signal_process(pid, signal.SIGKILL)


async def _kill_late(box: FakeBox, mark: str, leader: int) -> None:
    await anyio.sleep(6)
    await FakeBox._kill(box, mark, leader)


KillsTheLeaderOnly = killing(_kill_leader)
"""Cancelling a command kills its first process and leaves its children."""
KillsTheGroupOnly = killing(_kill_group)
"""Cancelling a command leaves children that called setsid."""
KillsTheNeighbours = killing(_kill_box)
"""Cancelling a command kills every command of the sandbox."""
KillsInOneSweep = killing(_kill_once)
"""Cancelling a command kills what a single look at the process table shows of it."""
KillsLate = killing(_kill_late)
"""Cancelling a command takes its time, as a vendor that polls does."""

IgnoresTheSnapshot = making(lambda spec: replace(spec, snapshot=None))
"""A sandbox starts without the files that were asked for."""
ForgetsSecrets = making(lambda spec: replace(spec, secrets={}))
"""Commands do not see the secrets."""

DropsInput = changing(lambda _, command: replace(command, stdin=None))
"""Every command's input is empty."""
IgnoresResizes = changing(lambda _, command: replace(command, stdin=_without_sizes(command.stdin)))
"""A terminal keeps its first size."""

TakesSignalsForExits = changing(end=lambda end: replace(end, ending=Ending.EXITED))
"""A command that a signal killed is said to have exited."""

SwallowsCancellation = failing(asyncio.CancelledError, lambda _: Exit(137, Ending.SIGNAL))
"""A cancelled command is killed, and then reported as if it had ended by itself."""
AnswersLikeAShell = failing(CommandStartError, lambda _: Exit(127))
"""A command that was not started has a status."""
TakesACutForAStatus = failing(OutcomeUnknownError, lambda _: Exit(255))
"""A command whose connection broke has a status, as with ssh."""

SaysNothing = changing(show=lambda stream, chunk: (stream, b""))
"""No command has output."""
WritesAsATerminal = changing(show=lambda stream, chunk: (stream, chunk.replace(b"\n", b"\r\n")))
"""Every line feed comes with a carriage return."""
MergesTheStreams = changing(show=lambda stream, chunk: ("stdout", chunk))
"""What is written to stderr is stdout."""

WaitsForTheNetwork = importing(
    "import socket, time\n"
    "def hang(*_, **__): time.sleep(12); raise OSError\n"
    "socket.create_connection = hang\n"
)
"""Connecting to somewhere without a network hangs until it is given up."""
ReachesTheInternet = importing(
    "import socket\nsocket.create_connection = lambda *_: socket.socket()\n"
)
"""Whatever is connected to answers."""


@changing
def LosesInputBesideOthers(box: FakeBox, command: Command) -> Command:
    """Input is for whichever process of the sandbox was there first, as with one vendor."""
    busy = members(f"box:{box.folder}", None)
    return replace(command, stdin=None) if busy else command


def _as_a_signal(end: Exit) -> Exit:
    if end.status == 137:
        return replace(end, ending=Ending.OUT_OF_MEMORY)
    return replace(end, ending=Ending.SIGNAL) if end.status else end


TakesStatusesForSignals = changing(end=_as_a_signal)
"""A status above 128 is reported as a signal, and 137 as the kernel's for want of memory."""


def _outage(error: BaseException) -> Exit:
    raise ProviderUnavailableError(str(error)) from error


TakesACutForAnOutage = failing(OutcomeUnknownError, _outage)
"""A command whose connection broke may be run again, it says, although it ran."""


def _without_sizes(items: AsyncIterable[StdinItem] | None) -> AsyncIterator[StdinItem] | None:
    async def others(items: AsyncIterable[StdinItem]) -> AsyncIterator[StdinItem]:
        async for item in items:
            if not isinstance(item, PtySize):
                yield item

    return None if items is None else others(items)
