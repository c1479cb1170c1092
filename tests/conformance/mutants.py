"""Fake providers that are wrong in one way each: a conformance check that passes on its mutant is void."""

import asyncio
import math
import os
import shutil
import signal
import subprocess
import time
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from sandboxkit import errors, types
from sandboxkit.provider import FirstCommand, Output, StreamName
from sandboxkit.testing.fake import FakeBox, FakeProvider, members, signal_process


class KillsNothing(FakeBox):
    """Cancelling a command lets it run on, as a client that hangs up does."""

    async def _kill(self, mark: str, leader: int | None) -> None:
        if leader is None:
            await super()._kill(mark, None)

    async def exec(self, command: types.Command, output: Output) -> types.Exit:
        task = asyncio.ensure_future(super().exec(command, output))
        return await asyncio.shield(task)


class WaitsForHeldOutput(FakeBox):
    """A command has not ended while a child of it holds stdout open."""

    async def exec(self, command: types.Command, output: Output) -> types.Exit:
        end = await super().exec(command, output)
        while any(_holds(pid, str(self.folder)) for pid in os.listdir("/proc")):
            await anyio.sleep(0.01)
        return end


class ForgetsToDelete(FakeBox):
    """Deleting does nothing."""

    async def delete(self) -> None:
        pass


class DeletesTheRecordOnly(FakeBox):
    """Deleting leaves the sandbox's processes running."""

    async def delete(self) -> None:
        self.calls.clear()  # so that they do not end their own commands
        await super().delete()

    async def _kill(self, mark: str, leader: int | None) -> None:
        if leader is not None:
            await super()._kill(mark, leader)


class DeletesOnce(FakeBox):
    """Deleting an unknown sandbox is an error, as with one vendor."""

    async def delete(self) -> None:
        self.there()
        await super().delete()


class LeaksACancelledCreate(FakeProvider):
    """A create that is cancelled leaves a sandbox."""

    async def create(self, spec: types.SandboxSpec, first: FirstCommand | None = None) -> FakeBox:
        return await asyncio.shield(asyncio.ensure_future(self._slowly(spec)))

    async def _slowly(self, spec: types.SandboxSpec) -> FakeBox:
        await anyio.sleep(0.05)
        return await super().create(spec)


class IgnoresTheLifetime(FakeBox):
    """Sandboxes live until they are deleted."""

    async def renew(self, lifetime: float) -> None:
        pass


class MatchesAnyTag(FakeProvider):
    """Listing by several tags gives sandboxes that carry one of them."""

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[types.SandboxInfo]:
        async for info in super().list({}):
            if not tags or tags.items() & info.tags.items():
                yield info


class LeaksTheEnvironment(FakeBox):
    """Commands see this machine's environment variables."""

    def _base_env(self) -> dict[str, str]:
        return dict(os.environ)


class ReportsTheMachinesUsage(FakeBox):
    """What a command used is what the machine has used since."""

    async def exec(self, command: types.Command, output: Output) -> types.Exit:
        since = time.monotonic()
        end = await super().exec(command, output)
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        usage = types.CommandUsage(time.monotonic() - since, memory, since, 3)
        return replace(end, usage=usage)


class HasNoRoom(FakeBox):
    """More than 20 commands at once have a status that is not theirs."""

    async def exec(self, command: types.Command, output: Output) -> types.Exit:
        if len(self.calls) > 20:
            return types.Exit(126)
        return await super().exec(command, output)


class ResizesEveryTerminal(FakeBox):
    """A terminal's new size is that of all terminals of the sandbox."""

    def __init__(self, provider: FakeProvider, sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self._terminals: list[MemoryObjectSendStream[types.StdinItem]] = []

    async def exec(self, command: types.Command, output: Output) -> types.Exit:
        typed = command.stdin
        if command.pty is None or typed is None:
            return await super().exec(command, output)
        send, receive = anyio.create_memory_object_stream[types.StdinItem](math.inf)

        async def feed() -> None:
            async for item in typed:
                for terminal in self._terminals if isinstance(item, types.PtySize) else [send]:
                    terminal.send_nowait(item)

        with send, receive:
            self._terminals.append(send)
            feeding = asyncio.create_task(feed())
            try:
                command = replace(command, stdin=receive)
                return await super().exec(command, output)
            finally:
                feeding.cancel()
                self._terminals.remove(send)


class HidesFileErrors(FakeBox):
    """A transfer that fails raises what its own machinery made of it."""

    async def put_archive(self, path: str, tar: AsyncIterable[bytes]) -> None:
        try:
            await super().put_archive(path, tar)
        except Exception as error:
            raise RuntimeError("Attempted to exit a cancel scope that isn't the current") from error


class LeaksADescriptor(FakeBox):
    """A file call that does not succeed leaves a descriptor open."""

    leaked: list[int] = []  # noqa: RUF012 - of all of them: whoever uses one closes these

    async def put_archive(self, path: str, tar: AsyncIterable[bytes]) -> None:
        with self._leaking():
            await super().put_archive(path, tar)

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        with self._leaking():
            return await super().read_file(path, max_bytes=max_bytes)

    async def write_file(self, path: str, data: bytes, *, mode: int | None) -> None:
        with self._leaking():
            await super().write_file(path, data, mode=mode)

    @contextmanager
    def _leaking(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.leaked.append(os.open("/", os.O_PATH))
            raise


class TakesAllForMissing(FakeBox):
    """What cannot be read is said not to be there."""

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        try:
            return await super().read_file(path, max_bytes=max_bytes)
        except errors.SandboxFileError as error:
            raise errors.SandboxFileNotFoundError(str(error), path=path) from error


class EndsInAForkedChild(FakeProvider):
    """A forked child takes the sandboxes for its own, and ends them."""

    def __init__(self) -> None:
        super().__init__()
        provider = weakref.ref(self)

        def end() -> None:
            alive = provider()
            for box in alive.boxes.values() if alive else ():
                for pid in members(f"box:{box.folder}", None):
                    signal_process(pid, signal.SIGKILL)
                shutil.rmtree(box.folder)

        os.register_at_fork(after_in_child=end)


class WaitsOutTheSilence(FakeBox):
    """Whoever asks a sandbox that is silent waits until it is not, its end included."""

    async def freeze(self) -> None:
        await super().freeze()
        assert self.patience is not None
        self.patience.cancel()

    async def _wait_while_frozen(self) -> None:
        if self.thawed is not None:
            await self.thawed.wait()

    async def delete(self) -> None:
        await self._wait_while_frozen()
        await super().delete()


class LosesPatienceAtOnce(FakeBox):
    """A moment of silence is the end of whatever runs."""

    async def freeze(self) -> None:
        await super().freeze()
        await self.cut()


class RunsAgainAfterACut(FakeBox):
    """A command whose connection broke is started once more."""

    async def exec(self, command: types.Command, output: Output) -> types.Exit:
        try:
            return await super().exec(command, output)
        except errors.OutcomeUnknownError:
            return await super().exec(command, output)


class TrueFails(FakeBox):
    """`true` exits with 1."""

    async def exec(self, command: types.Command, output: Output) -> types.Exit:
        if command.argv == ("true",):
            return types.Exit(1, types.Ending.EXITED)
        return await super().exec(command, output)


class CutsLongOutput(FakeBox):
    """After 4 MiB the rest of the output is dropped."""

    async def exec(self, command: types.Command, output: Output) -> types.Exit:
        left = 4 << 20

        async def cut(stream: StreamName, chunk: bytes) -> None:
            nonlocal left
            await output(stream, chunk[:left])
            left -= len(chunk[:left])

        return await super().exec(command, cut)


class RunsOneAtATime(FakeBox):
    """Commands wait for each other."""

    def __init__(self, provider: FakeProvider, sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self._turn = anyio.Lock()

    async def exec(self, command: types.Command, output: Output) -> types.Exit:
        async with self._turn:
            return await super().exec(command, output)


class GivesUpOnSilence(FakeBox):
    """A command that says nothing for a second has ended."""

    async def exec(self, command: types.Command, output: Output) -> types.Exit:
        end = types.Exit(0, types.Ending.EXITED)
        with anyio.CancelScope() as scope:

            async def heard(stream: StreamName, chunk: bytes) -> None:
                scope.deadline = anyio.current_time() + 1
                await output(stream, chunk)

            end = await super().exec(command, heard)
        return end


class ReadsOldFiles(FakeBox):
    """A file reads as it was when it was last written by a call."""

    def __init__(self, provider: FakeProvider, sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self._written: dict[str, bytes] = {}

    async def write_file(self, path: str, data: bytes, *, mode: int | None) -> None:
        self._written[path] = data
        await super().write_file(path, data, mode=mode)

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        return self._written.get(path, b"")


class ForgetsModes(FakeBox):
    """A file's mode is not what was asked for."""

    async def write_file(self, path: str, data: bytes, *, mode: int | None) -> None:
        await super().write_file(path, data, mode=None)


class ShowsSecrets(FakeProvider):
    """Secrets are among the tags."""

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[types.SandboxInfo]:
        async for info in super().list(tags):
            secrets = self.box(info.id).spec.secrets
            yield replace(info, tags={**info.tags, **secrets})


class LivesTooLong(FakeBox):
    """A lifetime is three times what was asked for."""

    async def renew(self, lifetime: float) -> None:
        await super().renew(3 * lifetime)


class ListsEverything(FakeProvider):
    """Listing by tags gives every sandbox."""

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[types.SandboxInfo]:
        async for info in super().list({}):
            yield info


class InheritsTheEnvironment(FakeBox):
    """A sandbox gets the variables and secrets of the one whose snapshot it starts from."""

    kept: ClassVar[dict[str, Mapping[str, str]]] = {}

    async def start(self, spec: types.SandboxSpec) -> None:
        inherited = self.kept.get(spec.snapshot or "", {})
        await super().start(replace(spec, env={**inherited, **spec.env}))

    async def take_snapshot(self, request: types.SnapshotRequest) -> types.SnapshotInfo:
        info = await super().take_snapshot(request)
        self.kept[info.id] = {**self.spec.env, **self.spec.secrets}
        return info


class SharesWrites(FakeBox):
    """Sandboxes of one snapshot have the same files, not copies of them."""

    def _copy(self, source: Path, target: Path) -> None:
        subprocess.run(["cp", "-al", "--", f"{source}/.", str(target)], check=True)


class LosesDeletions(FakeBox):
    """A snapshot has the files of its parent as well, those that were deleted included."""

    async def take_snapshot(self, request: types.SnapshotRequest) -> types.SnapshotInfo:
        parent = self.spec.snapshot
        info = await super().take_snapshot(request)
        if parent is not None:
            source, target = (self.backend.snapshots[each][1] for each in (parent, info.id))
            subprocess.run(["cp", "-an", "--", f"{source}/.", str(target)], check=True)
        return info


class LosesLinksAndModes(FakeBox):
    """A snapshot is a plain copy of the names and contents."""

    def _copy(self, source: Path, target: Path) -> None:
        subprocess.run(["cp", "-rP", "--", f"{source}/.", str(target)], check=True)


class KeepsOnRunning(FakeBox):
    """Programs run on while a snapshot is taken."""

    async def _stop(self) -> None:
        """Stop nothing."""

    def _copy(self, source: Path, target: Path) -> None:
        # A file that a program deletes meanwhile makes `cp` fail, not this mutant.
        subprocess.run(["cp", "-a", "--", f"{source}/.", str(target)], check=False)
        late, copied = (folder / "workspace" / "b" for folder in (source, target))
        if late.exists() and self.folder == source:
            end = time.monotonic() + 10
            while late.read_bytes() == copied.read_bytes() and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(0.3)
            copied.write_bytes(late.read_bytes())


class TakesAnyKind(FakeProvider):
    """A snapshot of files is given for one of memory."""

    def check_snapshot(self, spec: types.SandboxSpec, kind: types.SnapshotKind) -> None:
        """Refuse nothing."""


class DeletesWhatIsUsed(FakeProvider):
    """A snapshot is deleted while a sandbox runs from it."""

    async def delete_snapshot(self, snapshot_id: str) -> None:
        for box in self.boxes.values():
            box.spec = replace(box.spec, snapshot=None)
        await super().delete_snapshot(snapshot_id)


class KillsAtResume(FakeBox):
    """The programs of a paused sandbox are gone after it is resumed."""

    async def resume(self) -> None:
        await self._kill(f"box:{self.folder}", None)
        await super().resume()


def _holds(pid: str, folder: str) -> bool:
    try:
        return folder.encode() in Path("/proc", pid, "environ").read_bytes()
    except OSError:  # it ended, or is no process
        return False
