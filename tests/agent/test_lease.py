"""An agent whose owner comes by its socket: who that is, and how long it waits for a client."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream

from sandboxkit.errors import SandboxNotFoundError, SandboxStartError, SandboxTerminatedError
from sandboxkit.providers._agent import binary
from sandboxkit.providers._agent.launch import agent_flags, config_of
from sandboxkit.types import SandboxSpec
from tests.agent.conftest import NAMESPACE, Box, NamespaceProvider, Run
from tests.components import needs_mounts

pytestmark = [
    pytest.mark.anyio,
    needs_mounts("programs from outside"),
]


class SocketProvider(NamespaceProvider):
    """As on a cluster: nobody on the agent's stdin, and streams that break by themselves."""

    lease: float | None = 4.0
    grace = 1.0

    def _grace(self, stream: ByteStream) -> float:
        return self.grace

    async def create(self, spec: SandboxSpec) -> str:
        sandbox_id = f"ns{len(self.processes)}"
        flags = agent_flags(
            spec,
            listen_path=str(self.folder / sandbox_id),
            owner_by_socket=True,
            lease=self.lease,
            drop_env="KUBERNETES_",
        )
        self.processes[sandbox_id] = await asyncio.create_subprocess_exec(
            *NAMESPACE, str(binary.path()), *flags, stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, "KUBERNETES_PORT": "tcp://10.0.0.1", "KEPT": "1"},
        )  # fmt: skip
        try:
            with anyio.fail_after(60):
                stream = await self._connected_once_it_listens(sandbox_id)
            await self._attach(sandbox_id, stream, config_of(spec), lifeline=False)
        except BaseException:
            await self.delete(sandbox_id)
            raise
        return sandbox_id

    async def _connected_once_it_listens(self, sandbox_id: str) -> ByteStream:
        """The agent's socket has its name for a moment before anybody can connect to it."""
        while True:
            try:
                return await self._connect(sandbox_id)
            except SandboxNotFoundError as error:
                if not isinstance(error.__cause__, FileNotFoundError | ConnectionRefusedError):
                    raise
            await anyio.sleep(0.01)

    async def lives(self, sandbox_id: str, seconds: float) -> bool:
        """Whether it does after so long."""
        with anyio.move_on_after(seconds):
            await self.processes[sandbox_id].wait()
            return False
        return True


@pytest.fixture
async def clients(anyio_backend: str, tmp_path: Path) -> AsyncIterator[SocketProvider]:
    provider = SocketProvider(tmp_path)
    yield provider
    for sandbox_id in tuple(provider.processes):
        await provider.delete(sandbox_id)


async def made(provider: SocketProvider, folder: Path, **options: object) -> Box:
    spec = SandboxSpec(workdir=str(folder), **options)  # type: ignore[arg-type]  # a shorthand
    return Box(provider, await provider.create(spec), folder)


async def test_the_first_client_with_a_configuration_is_the_owner(
    clients: SocketProvider, tmp_path: Path
) -> None:
    box = await made(clients, tmp_path, env={"A": "1"})
    assert (await box.sh("echo $A$KEPT$KUBERNETES_PORT")).stdout == b"11\n"
    stream = await clients._connect(box.id)
    with pytest.raises(SandboxStartError, match="configured before"):
        await clients._attach(box.id, stream, config_of(SandboxSpec()), lifeline=False)


async def test_the_sandbox_ends_with_its_lease_when_no_client_is_connected(
    clients: SocketProvider, tmp_path: Path
) -> None:
    box = await made(clients, tmp_path)
    assert await clients.lives(box.id, 5.0)
    await clients._forget(box.id)
    assert not await clients.lives(box.id, 60.0)


async def test_a_disconnected_client_keeps_the_sandbox_for_its_grace_period(
    clients: SocketProvider, tmp_path: Path
) -> None:
    clients.grace = 8.0
    box = await made(clients, tmp_path)
    client = clients._known(box.id).client
    assert client is not None
    for task in client._tasks:
        task.cancel()  # as if this process had been killed: it says nothing more
    assert client._link._stream is not None
    await client._link._stream.aclose()
    assert await clients.lives(box.id, 5.0)
    assert not await clients.lives(box.id, 30.0)


async def test_an_owner_that_never_connects_does_not_keep_the_sandbox(
    clients: SocketProvider, tmp_path: Path
) -> None:
    class Nobody(SocketProvider):
        async def _connect(self, sandbox_id: str) -> ByteStream:
            raise SandboxNotFoundError("the owner was killed")

        async def delete(self, sandbox_id: str) -> None:
            pass

    provider = Nobody(tmp_path)
    with pytest.raises(SandboxNotFoundError):
        await provider.create(SandboxSpec(workdir=str(tmp_path)))
    clients.processes = provider.processes
    assert not await clients.lives("ns0", 30.0)


async def test_a_sandbox_without_a_lease_stays(clients: SocketProvider, tmp_path: Path) -> None:
    clients.lease = None
    box = await made(clients, tmp_path, command=("sleep", "100"))
    await clients._forget(box.id)
    assert await clients.lives(box.id, 3.0)
    assert (await box.sh("cat /proc/[0-9]*/comm | grep -qx sleep && echo on")).stdout == b"on\n"


async def test_the_end_of_a_lease_is_reported_to_waiting_clients(
    clients: SocketProvider, tmp_path: Path
) -> None:
    box, run = await made(clients, tmp_path, lifetime=60), Run()
    async with anyio.create_task_group() as group:

        async def shorten() -> None:
            await run.started.wait()
            await clients.renew(box.id, 0.1)

        group.start_soon(shorten)
        with anyio.fail_after(30), pytest.raises(SandboxTerminatedError, match="lifetime"):
            await box.sh("echo; sleep 100", run=run)
