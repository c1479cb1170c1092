"""How a sandbox ends: its deadline, its owner, its lease, and what calls in flight are told."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

import anyio
import pytest
from anyio.abc import ByteStream

from sandboxkit.errors import SandboxNotFoundError, SandboxStartError, SandboxTerminatedError
from sandboxkit.providers._agent import binary
from sandboxkit.providers._agent.launch import agent_flags, config_of
from sandboxkit.types import SandboxSpec
from tests.agent.conftest import (
    NAMESPACE,
    Box,
    NamespaceBox,
    NamespaceProvider,
    Run,
    at_start,
    made,
    until,
)
from tests.components import needs_mounts

pytestmark = pytest.mark.anyio


async def ended(box: Box) -> None:
    process = box.inner.process
    assert process is not None
    await until(lambda: process.returncode is not None)


async def test_a_stopped_command_cannot_extend_a_lifetime(provider: NamespaceProvider) -> None:
    box, run = await made(provider, lifetime=60), Run()
    script = "kill -STOP 1; kill -9 1; kill -TERM 1; echo; kill -STOP -1; sleep 100"
    async with at_start(run, partial(box.inner.renew, 0.1)):
        with pytest.raises(SandboxTerminatedError):
            await box.sh(script, run)
    await ended(box)


async def test_a_second_client_works_and_its_end_kills_only_its_commands(box: Box) -> None:
    async def leave() -> None:
        await box.sh("sleep 2001 &")
        await other.aclose()

    other, run = NamespaceProvider(box.inner.backend.folder), Run()
    guest = Box(other.box(box.id))
    assert (await guest.sh("echo $SPEC")).stdout == b"spec\n"
    async with at_start(run, leave):
        with pytest.raises(SandboxTerminatedError):
            await guest.sh("setsid sleep 1001 & echo up; wait", run)
    await box.settled("sleep 2001")


async def test_a_main_commands_log_keeps_the_newest_mebibyte(provider: NamespaceProvider) -> None:
    command = ("sh", "-c", "seq 1000000; echo err >&2; echo last; exit 5")
    box = await made(provider, command=command)
    assert await box.inner.wait() == 5
    log = await box.inner.logs()
    assert 1 << 20 <= len(log) <= 2 << 20
    assert b"err\n" in log  # of another pipe, so anywhere
    assert log.replace(b"err\n", b"").endswith(b"\n1000000\nlast\n")


async def test_waiting_for_the_main_command_can_be_cancelled(provider: NamespaceProvider) -> None:
    box = await made(provider, command=("sleep", "1000"))
    with anyio.move_on_after(0.05) as scope:
        await box.inner.wait()
    assert scope.cancelled_caught
    assert await box.inner.logs() == b""


class SocketProvider(NamespaceProvider):
    """As on a cluster: nobody on the agent's stdin, and streams that break by themselves."""

    lease: float | None = 4.0
    grace = 1.0


class SocketBox(NamespaceBox):
    def _grace(self, stream: ByteStream) -> float:
        assert isinstance(self.provider, SocketProvider)
        return self.provider.grace

    async def start(self, spec: SandboxSpec) -> None:
        assert isinstance(self.provider, SocketProvider)
        flags = agent_flags(
            spec, listen_path=str(self.socket), owner_by_socket=True,
            lease=self.provider.lease, drop_env="KUBERNETES_",
        )  # fmt: skip
        self.process = await asyncio.create_subprocess_exec(
            *NAMESPACE, str(binary.path()), *flags, stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, "KUBERNETES_PORT": "tcp://10.0.0.1", "KEPT": "1"},
        )  # fmt: skip
        with anyio.fail_after(60):
            while (stream := await self.tried()) is None:
                await anyio.sleep(0.01)
        await self.attach(stream, config_of(spec), lifeline=False)

    async def tried(self) -> ByteStream | None:
        """The agent's socket has its name for a moment before anybody can connect to it."""
        with suppress(SandboxNotFoundError):
            return await self._connect()
        return None


async def lives(box: NamespaceBox, seconds: float) -> bool:
    """Whether it does after so long."""
    assert box.process is not None
    with anyio.move_on_after(seconds):
        await box.process.wait()
        return False
    return True


@pytest.fixture(params=[pytest.param(None, marks=needs_mounts("programs from outside"))])
async def clients(provider: NamespaceProvider) -> AsyncIterator[SocketProvider]:
    clients = SocketProvider(provider.folder, SocketBox)
    yield clients
    for box in clients.made:
        await box.delete()


async def test_the_first_client_with_a_configuration_is_the_owner(clients: SocketProvider) -> None:
    box = await made(clients, env={"A": "1"})
    assert (await box.sh("echo $A$KEPT$KUBERNETES_PORT")).stdout == b"11\n"
    stream = await box.inner._connect()
    with pytest.raises(SandboxStartError, match="configured before"):
        await box.inner.attach(stream, config_of(SandboxSpec()), lifeline=False)


async def test_a_sandbox_without_clients_ends_with_its_lease(clients: SocketProvider) -> None:
    box = await made(clients)
    assert await lives(box.inner, 5.0)
    await box.inner.forget()
    assert not await lives(box.inner, 60.0)


async def test_a_lost_client_keeps_the_sandbox_for_its_grace(clients: SocketProvider) -> None:
    clients.grace = 8.0
    box = await made(clients)
    client = box.client
    for task in client._tasks:
        task.cancel()  # as if this process had been killed: it says nothing more
    assert client._link._stream is not None
    await client._link._stream.aclose()
    assert await lives(box.inner, 5.0)
    assert not await lives(box.inner, 30.0)


async def test_an_owner_that_never_connects_does_not_keep_the_sandbox(
    clients: SocketProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(_: SocketBox) -> None:
        raise SandboxNotFoundError("the owner was killed")

    monkeypatch.setattr(SocketBox, "tried", killed)
    with pytest.raises(SandboxNotFoundError):
        await made(clients)
    assert not await lives(clients.made[0], 30.0)


async def test_a_sandbox_without_a_lease_stays(clients: SocketProvider) -> None:
    clients.lease = None
    box = await made(clients, command=("sleep", "100"))
    await box.inner.forget()
    assert await lives(box.inner, 3.0)
    assert (await box.sh("cat /proc/[0-9]*/comm | grep -qx sleep && echo on")).stdout == b"on\n"


async def test_the_end_of_a_lease_is_reported_to_waiting_clients(clients: SocketProvider) -> None:
    box, run = await made(clients, lifetime=60), Run()
    async with at_start(run, partial(box.inner.renew, 0.1)):
        with anyio.fail_after(30), pytest.raises(SandboxTerminatedError, match="lifetime"):
            await box.sh("echo; sleep 100", run)
