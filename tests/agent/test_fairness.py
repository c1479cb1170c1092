"""Data to the sandbox beside commands: exact, held back for a time only, and sent in small turns."""

import os
import socket
from functools import partial
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from sandboxkit.providers._agent import outgoing, requests
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.frames import Kind
from sandboxkit.providers._agent.unix import UnixStream
from tests.agent.conftest import Box
from tests.agent.test_ports import MIB, Program, everything, pair
from tests.agent.test_protocol import WELCOME, of_the_agent
from tests.components import lack, without_root

pytestmark = pytest.mark.anyio


async def test_data_to_the_sandbox_arrives_in_order_beside_commands_without_end(box: Box) -> None:
    data, program, commands = os.urandom(20 * MIB), Program(), 0
    path = box.workdir / "written"

    async def run_commands() -> None:
        nonlocal commands
        while True:
            assert (await box.exec("true")).status == 0
            commands += 1

    async with pair(box, program) as (ours, theirs), anyio.create_task_group() as endless:
        for _ in range(4):
            endless.start_soon(run_commands)

        async def send() -> None:
            await ours.send(data)
            await ours.send_eof()

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(
                    partial(box.provider.write_file, mode=None), box.id, str(path), data
                )
                group.start_soon(send)
                assert await everything(theirs) == data
        endless.cancel_scope.cancel()
    program.close()
    assert path.read_bytes() == data
    assert commands > 20


async def test_a_write_that_is_held_back_can_be_cancelled_and_goes_on_when_the_command_ends(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "_HOLD_SECONDS", 600)
    client = await box.provider._client(box.id)
    cancelled, kept, data = box.workdir / "cancelled", box.workdir / "kept", os.urandom(MIB)

    async def write(path: Path) -> None:
        await requests.write_file(client, str(path), data, None)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as writes, anyio.create_task_group() as commands:
            commands.start_soon(box.exec, "sleep", "600")
            await box.settled("sleep 600")
            writes.start_soon(write, kept)
            async with anyio.create_task_group() as group:
                group.start_soon(write, cancelled)
                await anyio.wait_all_tasks_blocked()
                assert (await box.exec("echo", "quick")).stdout == b"quick\n"
                assert not cancelled.exists()
                assert not kept.exists()
                group.cancel_scope.cancel()
            commands.cancel_scope.cancel()
    assert kept.read_bytes() == data
    assert [path.name for path in box.workdir.iterdir()] == ["kept"]


async def test_other_tasks_run_between_the_turns_of_data_that_the_kernel_takes_at_once() -> None:
    ours, agent = socket.socketpair()
    try:
        ours.setsockopt(socket.SOL_SOCKET, 32, 16 * MIB)  # SO_SNDBUFFORCE
    except PermissionError:
        ours.close()
        agent.close()
        lack(without_root("only root can enlarge the buffer of a socket"))
    agent.send(of_the_agent(WELCOME))
    client = await AgentClient.start(UnixStream(ours), requests.hello(None))
    moved: list[int] = []
    async with anyio.create_task_group() as group:
        for _ in range(16):
            group.start_soon(client.open(Kind.CALL, b"\x02").send, bytes(128 << 10))
        while not moved or moved[-1] < 2 * MIB:
            moved.append(client.moved[0])
            await anyio.lowlevel.checkpoint()
    most = max(after - before for before, after in pairwise(moved))
    assert most < 640 << 10
    agent.close()
    await client.aclose()
