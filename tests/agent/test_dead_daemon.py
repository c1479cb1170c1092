"""A vendor's daemon that is dead or frozen: what was never sent is told from what nobody knows."""

import time
from collections.abc import AsyncIterator

import anyio
import pytest

from sandboxkit.errors import ProviderUnavailableError
from sandboxkit.providers._agent import heartbeat, provider
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.types import Command, SandboxSpec
from tests.agent.conftest import Run
from tests.agent.machines import Machines
from tests.components import needs_mounts

pytestmark = [
    pytest.mark.anyio,
    needs_mounts("machines with users of their own"),
]

_OWN = "mount -t tmpfs none /usr/local/bin && mount -t tmpfs none /dev/shm && mount -t tmpfs none /root"


class Daemon(Machines):
    """Machines whose daemon dies, or freezes, and comes back."""

    def __init__(self) -> None:
        super().__init__(_OWN)
        self.dead = False
        self.awake = anyio.Event()
        self.awake.set()

    async def _run(self, sandbox_id: str, argv: tuple[str, ...]) -> ProgramStream:
        if self.dead:
            raise ProviderUnavailableError("connection refused", provider=self.name)
        await self.awake.wait()
        return await super()._run(sandbox_id, argv)

    def die(self) -> None:
        self.dead = True
        for link in self.links:
            link.kill()


@pytest.fixture
async def machines(anyio_backend: str) -> AsyncIterator[Daemon]:
    machines = Daemon()
    yield machines
    for sandbox_id in list(machines.processes):
        await machines.delete(sandbox_id)


async def output_of(
    machines: Machines, sandbox_id: str, script: str, run: Run | None = None
) -> bytes:
    run = run or Run()
    end = await machines.exec(sandbox_id, Command(("sh", "-c", script)), run.output)
    assert end.status == 0
    return run.stdout


async def test_a_dead_daemon_is_reported_in_time_and_the_command_was_not_sent(
    machines: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = await machines.create(SandboxSpec(workdir="/tmp"))
    assert await output_of(machines, sandbox_id, "echo on") == b"on\n"
    machines.die()
    client = machines._known(sandbox_id).client
    assert client is not None
    with anyio.fail_after(60):
        while not client._link.is_between:  # until it has noticed
            await anyio.sleep(0.01)
    monkeypatch.setattr(provider, "_RETURN_PATIENCE", 1.0)
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(ProviderUnavailableError, match="the request was not sent") as raised:
            await output_of(machines, sandbox_id, "echo ran >>/root/ran")
        assert raised.value.retryable
        assert time.monotonic() - began < 30  # the grace of its link is a minute
    machines.dead = False
    monkeypatch.setattr(provider, "_RETURN_PATIENCE", 60.0)
    with anyio.fail_after(60):
        assert (
            await output_of(machines, sandbox_id, "cat /root/ran 2>/dev/null; echo on") == b"on\n"
        )


async def test_a_command_that_ends_while_the_daemon_is_frozen_keeps_its_status(
    machines: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = await machines.create(SandboxSpec(workdir="/tmp"))
    monkeypatch.setattr(heartbeat, "SILENT_AFTER", 1.0)
    monkeypatch.setattr(heartbeat, "_TICK", 0.1)
    monkeypatch.setattr(heartbeat, "_PING_AFTER", 0.2)
    run, found = Run(), []

    async def command() -> None:
        found.append(await output_of(machines, sandbox_id, "echo on; sleep 1; echo off", run))

    async with anyio.create_task_group() as group:
        group.start_soon(command)
        await run.started.wait()
        machines.awake = anyio.Event()
        machines.links[-1].freeze()
        await anyio.sleep(2.2)
        machines.links[-1].freeze(thaw=True)
        machines.awake.set()
    assert found == [b"on\noff\n"]
