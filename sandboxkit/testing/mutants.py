"""Providers that are wrong in one way each: a conformance check that passes on its mutant is void."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping

import anyio

from sandboxkit.errors import SandboxNotFoundError
from sandboxkit.provider import Output
from sandboxkit.testing._tree import members, signal_process
from sandboxkit.testing.fake import FakeProvider, _Box
from sandboxkit.types import Command, SandboxInfo, SandboxSpec


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

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> int:
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

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> int:
        returncode = await super().exec(sandbox_id, command, output)
        folder = str(self._box(sandbox_id).folder)
        while any(_holds(pid, folder) for pid in os.listdir("/proc")):  # noqa: ASYNC110 - no event for it
            await anyio.sleep(0.01)
        return returncode


class ForgetsToDelete(FakeProvider):
    """Deleting does nothing."""

    async def delete(self, sandbox_id: str) -> None:
        pass


class DeletesTheRecordOnly(FakeProvider):
    """Deleting leaves the sandbox's processes running."""

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


def _holds(pid: str, folder: str) -> bool:
    if not pid.isdigit():
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return folder.encode() in file.read()
    except OSError:
        return False
