"""Providers that are wrong in one way each: a conformance check that passes on its mutant is void."""

import asyncio
import dataclasses
import math
import os
import shutil
import signal
import time
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Mapping

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from sandboxkit.errors import (
    CommandStartError,
    OutcomeUnknownError,
    ProviderUnavailableError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxNotFoundError,
)
from sandboxkit.provider import Output
from sandboxkit.testing._tree import members, signal_process
from sandboxkit.testing.fake import FakeProvider, _Box
from sandboxkit.types import (
    Command,
    CommandUsage,
    Ending,
    Exit,
    PtySize,
    SandboxInfo,
    SandboxSpec,
    StdinItem,
)


class KillsTheLeaderOnly(FakeProvider):
    """Cancelling a command kills its first process and leaves its children."""

    async def _kill(self, mark: str, leader: int | None) -> None:
        if leader is None:
            await super()._kill(mark, None)
        else:
            os.kill(leader, signal.SIGKILL)


class KillsTheGroupOnly(FakeProvider):
    """Cancelling a command leaves children that called setsid."""

    async def _kill(self, mark: str, leader: int | None) -> None:
        if leader is None:
            await super()._kill(mark, None)
        else:
            os.killpg(leader, signal.SIGKILL)


class KillsNothing(FakeProvider):
    """Cancelling a command lets it run on, as a client that hangs up does."""

    async def _kill(self, mark: str, leader: int | None) -> None:
        if leader is None:
            await super()._kill(mark, None)

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        task = asyncio.ensure_future(super().exec(sandbox_id, command, output))
        return await asyncio.shield(task)


class KillsTheNeighbours(FakeProvider):
    """Cancelling a command kills every command of the sandbox."""

    async def _kill(self, mark: str, leader: int | None) -> None:
        await super()._kill(mark.rpartition(":")[0] if leader is not None else mark, leader)


class KillsInOneSweep(FakeProvider):
    """Cancelling a command kills what a single look at the process table shows of it."""

    async def _kill(self, mark: str, leader: int | None) -> None:
        if leader is None:
            await super()._kill(mark, None)
            return
        for pid in members(mark, leader):
            signal_process(pid, signal.SIGKILL)


class KillsLate(FakeProvider):
    """Cancelling a command takes its time, as a vendor that polls does."""

    async def _kill(self, mark: str, leader: int | None) -> None:
        if leader is not None:
            await anyio.sleep(6)
        await super()._kill(mark, leader)


class WaitsForTheNetwork(FakeProvider):
    """Connecting to somewhere without a network hangs until it is given up."""

    def _base_env(self, box: _Box) -> dict[str, str]:
        hangs = "import socket, time\nsocket.create_connection = hang\n"
        hangs = f"def hang(*_, **__): time.sleep(12); raise OSError\n{hangs}"
        (box.folder / "sitecustomize.py").write_text(hangs)
        return {**super()._base_env(box), "PYTHONPATH": str(box.folder)}


class WaitsForHeldOutput(FakeProvider):
    """A command has not ended while a child of it holds stdout open."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        end = await super().exec(sandbox_id, command, output)
        folder = str(self._box(sandbox_id).folder)
        while any(_holds(pid, folder) for pid in os.listdir("/proc")):
            await anyio.sleep(0.01)
        return end


class ForgetsToDelete(FakeProvider):
    """Deleting does nothing."""

    async def delete(self, sandbox_id: str) -> None:
        pass


class DeletesTheRecordOnly(FakeProvider):
    """Deleting leaves the sandbox's processes running."""

    async def delete(self, sandbox_id: str) -> None:
        if sandbox_id in self._boxes:
            self._boxes[sandbox_id].calls.clear()  # so that they do not end their own commands
        await super().delete(sandbox_id)

    async def _kill(self, mark: str, leader: int | None) -> None:
        if leader is not None:
            await super()._kill(mark, leader)


class DeletesOnce(FakeProvider):
    """Deleting an unknown sandbox is an error, as with one vendor."""

    async def delete(self, sandbox_id: str) -> None:
        if sandbox_id not in self._boxes:
            raise SandboxNotFoundError(f"no sandbox {sandbox_id!r}")
        await super().delete(sandbox_id)


class LeaksACancelledCreate(FakeProvider):
    """A create that is cancelled leaves a sandbox."""

    async def create(self, spec: SandboxSpec) -> str:
        return await asyncio.shield(asyncio.ensure_future(self._slowly(spec)))

    async def _slowly(self, spec: SandboxSpec) -> str:
        await anyio.sleep(0.05)
        return await super().create(spec)


class IgnoresTheLifetime(FakeProvider):
    """Sandboxes live until they are deleted."""

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        pass


class MatchesAnyTag(FakeProvider):
    """Listing by several tags gives sandboxes that carry one of them."""

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        async for info in super().list({}):
            if not tags or tags.items() & info.tags.items():
                yield info


class LeaksTheEnvironment(FakeProvider):
    """Commands see this machine's environment variables."""

    def _base_env(self, box: _Box) -> dict[str, str]:
        return dict(os.environ)


class TakesStatusesForSignals(FakeProvider):
    """A status above 128 is reported as a signal, and 137 as the kernel's for want of memory."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        end = await super().exec(sandbox_id, command, output)
        if end.status == 137:
            return dataclasses.replace(end, ending=Ending.OUT_OF_MEMORY)
        return dataclasses.replace(end, ending=Ending.SIGNAL) if end.status else end


class TakesSignalsForExits(FakeProvider):
    """A command that a signal killed is said to have exited."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        end = await super().exec(sandbox_id, command, output)
        return dataclasses.replace(end, ending=Ending.EXITED)


class SwallowsCancellation(FakeProvider):
    """A cancelled command is killed, and then reported as if it had ended by itself."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        try:
            return await super().exec(sandbox_id, command, output)
        except asyncio.CancelledError:
            return Exit(137, Ending.SIGNAL)


class ReportsTheMachinesUsage(FakeProvider):
    """What a command used is what the machine has used since."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        since = time.monotonic()
        end = await super().exec(sandbox_id, command, output)
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        usage = CommandUsage(time.monotonic() - since, memory, since, 3)
        return dataclasses.replace(end, usage=usage)


class AnswersLikeAShell(FakeProvider):
    """A command that was not started has a status."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        try:
            return await super().exec(sandbox_id, command, output)
        except CommandStartError as error:
            await output("stderr", str(error).encode())
            return Exit(127)


class HasNoRoom(FakeProvider):
    """More than 20 commands at once have a status that is not theirs."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        if len(self._box(sandbox_id).calls) > 20:
            return Exit(126)
        return await super().exec(sandbox_id, command, output)


class DropsInput(FakeProvider):
    """Every command's input is empty."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        return await super().exec(sandbox_id, dataclasses.replace(command, stdin=None), output)


class LosesInputBesideOthers(FakeProvider):
    """Input is for whichever process of the sandbox was there first, as with one vendor."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        if command.stdin is not None and members(f"box:{self._box(sandbox_id).folder}", None):
            command = dataclasses.replace(command, stdin=None)
        return await super().exec(sandbox_id, command, output)


class ResizesEveryTerminal(FakeProvider):
    """A terminal's new size is that of all terminals of the sandbox."""

    def __init__(self) -> None:
        super().__init__()
        self._terminals: list[MemoryObjectSendStream[StdinItem]] = []

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        typed = command.stdin
        if command.pty is None or typed is None:
            return await super().exec(sandbox_id, command, output)
        send, receive = anyio.create_memory_object_stream[StdinItem](math.inf)

        async def feed() -> None:
            async for item in typed:
                for terminal in self._terminals if isinstance(item, PtySize) else [send]:
                    terminal.send_nowait(item)

        with send, receive:
            self._terminals.append(send)
            feeding = asyncio.create_task(feed())
            try:
                command = dataclasses.replace(command, stdin=receive)
                return await super().exec(sandbox_id, command, output)
            finally:
                feeding.cancel()
                self._terminals.remove(send)


class HidesFileErrors(FakeProvider):
    """A transfer that fails raises what its own machinery made of it."""

    async def put_archive(self, sandbox_id: str, path: str, tar: AsyncIterable[bytes]) -> None:
        try:
            await super().put_archive(sandbox_id, path, tar)
        except Exception as error:
            raise RuntimeError("Attempted to exit a cancel scope that isn't the current") from error


class LeaksADescriptor(FakeProvider):
    """A file call that does not succeed leaves a descriptor open."""

    leaked: list[int] = []  # noqa: RUF012 - of all of them: whoever uses one closes these

    async def put_archive(self, sandbox_id: str, path: str, tar: AsyncIterable[bytes]) -> None:
        try:
            await super().put_archive(sandbox_id, path, tar)
        except BaseException:
            self._leak()
            raise

    async def read_file(self, sandbox_id: str, path: str, *, max_bytes: int) -> bytes:
        try:
            return await super().read_file(sandbox_id, path, max_bytes=max_bytes)
        except BaseException:
            self._leak()
            raise

    async def write_file(
        self, sandbox_id: str, path: str, data: bytes, *, mode: int | None
    ) -> None:
        try:
            await super().write_file(sandbox_id, path, data, mode=mode)
        except BaseException:
            self._leak()
            raise

    def _leak(self) -> None:
        self.leaked.append(os.open("/", os.O_PATH))


class TakesAllForMissing(FakeProvider):
    """What cannot be read is said not to be there."""

    async def read_file(self, sandbox_id: str, path: str, *, max_bytes: int) -> bytes:
        try:
            return await super().read_file(sandbox_id, path, max_bytes=max_bytes)
        except SandboxFileError as error:
            raise SandboxFileNotFoundError(str(error), path=path) from error


class EndsInAForkedChild(FakeProvider):
    """A forked child takes the sandboxes for its own, and ends them."""

    def __init__(self) -> None:
        super().__init__()
        provider = weakref.ref(self)

        def end() -> None:
            alive = provider()
            for box in alive._boxes.values() if alive else ():
                for pid in members(f"box:{box.folder}", None):
                    signal_process(pid, signal.SIGKILL)
                shutil.rmtree(box.folder)

        os.register_at_fork(after_in_child=end)


class WaitsOutTheSilence(FakeProvider):
    """Whoever asks a sandbox that is silent waits until it is not, its end included."""

    async def freeze(self, sandbox_id: str) -> None:
        await super().freeze(sandbox_id)
        patience = self._box(sandbox_id).patience
        assert patience is not None
        patience.cancel()

    async def _wait_while_frozen(self, box: _Box) -> None:
        if box.thawed is not None:
            await box.thawed.wait()

    async def delete(self, sandbox_id: str) -> None:
        if sandbox_id in self._boxes:
            await self._wait_while_frozen(self._box(sandbox_id))
        await super().delete(sandbox_id)


class LosesPatienceAtOnce(FakeProvider):
    """A moment of silence is the end of whatever runs."""

    async def freeze(self, sandbox_id: str) -> None:
        await super().freeze(sandbox_id)
        await self.cut(sandbox_id)


class RunsAgainAfterACut(FakeProvider):
    """A command whose connection broke is started once more."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        try:
            return await super().exec(sandbox_id, command, output)
        except OutcomeUnknownError:
            return await super().exec(sandbox_id, command, output)


class TakesACutForAStatus(FakeProvider):
    """A command whose connection broke has a status, as with ssh."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        try:
            return await super().exec(sandbox_id, command, output)
        except OutcomeUnknownError:
            return Exit(255)


class TakesACutForAnOutage(FakeProvider):
    """A command whose connection broke may be run again, it says, although it ran."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        try:
            return await super().exec(sandbox_id, command, output)
        except OutcomeUnknownError as error:
            raise ProviderUnavailableError(str(error)) from error


def _holds(pid: str, folder: str) -> bool:
    if not pid.isdigit():
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return folder.encode() in file.read()
    except OSError:
        return False
