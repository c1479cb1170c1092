"""Flow control: bounded memory on both sides, the order of frames, and data that is held back for commands."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from sandboxkit.providers._agent import requests
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.frames import Kind
from sandboxkit.providers._agent.stream import SendQueue
from sandboxkit.providers._agent.unix import UnixStream
from sandboxkit.types import StdinItem
from tests.agent.conftest import Box, Run
from tests.agent.test_protocol import WELCOME, of_the_agent
from tests.components import lack, without_root

pytestmark = pytest.mark.anyio

MIB = 1 << 20


def resident_mib(pid: int | str) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


@pytest.mark.parametrize("way", ["out", "in"])
async def test_200_mb_pass_at_bounded_memory_of_both_sides(box: Box, way: str) -> None:
    pids: tuple[int | str, ...] = ("self", box.agent_pid())
    before = {pid: resident_mib(pid) for pid in pids}
    total = 0

    async def look(data: bytes) -> None:
        nonlocal total
        if total % (8 * MIB) < len(data):
            for pid in before:
                assert resident_mib(pid) - before[pid] < 30
        total += len(data)

    async def upload() -> AsyncIterator[StdinItem]:
        for _ in range(200):
            yield bytes(MIB)
            await look(bytes(MIB))

    if way == "out":
        await box.exec("head", "-c", str(200 * MIB), "/dev/zero", run=Run(look))
    else:
        run = await box.exec("wc", "-c", stdin=upload())
        assert run.stdout.strip() == str(200 * MIB).encode()
    assert total == 200 * MIB


async def test_a_write_that_is_held_back_can_be_cancelled_and_goes_on_when_the_command_ends(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxkit.providers._agent.stream._HOLD_SECONDS", 600)
    client = await box.inner._client()
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


FRAME = bytes(64 << 10)


def taken(queue: SendQueue) -> list[bytes]:
    found = []
    while queue:
        found.append(b"".join(queue.take()))
    return found


REQUEST = b"request" + FRAME
ORDERS = {
    "short frames are taken before all data": (
        [(FRAME, 1, True), (b"one", 2, False), (b"two", 1, False)],
        [b"onetwo", FRAME],
    ),
    "a long request keeps its place before its data": (
        [(FRAME, 2, True), (REQUEST, 1, False), (b"its data", 1, True)],
        [FRAME, REQUEST + b"its data"],
    ),
    "no frame overtakes the long one that begins its request": (
        [(FRAME, 2, True), (REQUEST, 1, False), (b"kill", 1, False), (b"other", 2, False)],
        [b"other", FRAME, REQUEST + b"kill"],
    ),
}
"""What is put, on which stream, whether it is data, and in which turns it is taken."""


@pytest.mark.parametrize("name", ORDERS)
async def test_frames_are_taken_in_their_order(name: str) -> None:
    queue, (puts, turns) = SendQueue(), ORDERS[name]
    for frame, stream, is_data in puts:
        (queue.put_data if is_data else queue.put)(frame, stream)
    assert taken(queue) == turns


async def test_requests_take_turns_and_each_keeps_its_order() -> None:
    queue = SendQueue()
    for stream in (1, 2):
        for number in range(6):
            queue.put_data(bytes([stream, number]) + FRAME, stream)
    turns = taken(queue)
    assert [turn[0] for turn in turns] == [1, 2, 1, 2, 1, 2]
    firsts = b"".join(turn for turn in turns if turn[0] == 1)
    assert [firsts[at + 1] for at in range(0, len(firsts), len(FRAME) + 2)] == list(range(6))


@pytest.mark.parametrize("way", ["take", "close"])
async def test_a_request_waits_for_room_only_for_its_own_data(way: str) -> None:
    queue = SendQueue()
    for _ in range(3):
        queue.put_data(FRAME, 1)
    await queue.room(2)
    with anyio.fail_after(60):
        waiting = asyncio.create_task(queue.room(1))
        await anyio.lowlevel.checkpoint()
        assert not waiting.done()
        getattr(queue, way)()
        await waiting
        if way == "close":
            await queue.room(1)


async def test_long_data_waits_for_a_command_that_starts_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sandboxkit.providers._agent.stream.monotonic", lambda: 100.0)
    queue = SendQueue()
    queue.put_data(FRAME, 1)
    queue.starts(2)
    assert 0 < queue.hold() < 0.011
    queue.put_data(b"short", 3)
    queue.put(b"request" + FRAME, 4)
    queue.put(b"kill", 1)
    allowed = []
    while taken := queue.take():
        allowed.append(b"".join(taken))
    assert allowed == [b"kill", b"short", b"request" + FRAME]
    assert queue.started(2), "the writer must be woken"
    assert queue.hold() == 0
    assert not queue.started(2)


async def test_a_command_does_not_hold_back_its_own_data() -> None:
    queue = SendQueue()
    queue.starts(1)
    queue.put_data(FRAME, 1)
    assert queue.hold() == 0


async def test_endless_commands_hold_data_back_half_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("sandboxkit.providers._agent.stream.monotonic", lambda: now)
    queue = SendQueue()
    held = longest = row = 0
    for command in range(1000):  # one starts each millisecond, and none is said to have started
        queue.starts(command)
        row = row + 1 if queue.hold() else 0
        held += row > 0
        longest = max(longest, row)
        now += 0.001
    assert 400 <= held <= 500
    assert longest <= 11
    now += 0.01
    assert queue.hold() == 0, "commands that started long ago do not count"
