"""Flow control: large output at bounded memory on both sides, and a slow reader blocks nobody."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from sandboxkit.types import StdinItem
from tests.agent.conftest import Box, Run

pytestmark = pytest.mark.anyio

MIB = 1 << 20


def resident_mib(pid: int | str = "self") -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


async def agent_pid(box: Box) -> int:
    launcher = box.provider.processes[box.id].pid
    return int(Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()[0])


async def test_300_mb_of_output_at_bounded_memory(box: Box) -> None:
    total = 0
    peak = 0.0
    pid = await agent_pid(box)
    before, agent_before = resident_mib(), resident_mib(pid)
    agent_peak = 0.0

    async def count(stream: str, data: bytes) -> None:
        nonlocal total, peak, agent_peak
        total += len(data)
        if total % (8 * MIB) < len(data):
            peak = max(peak, resident_mib())
            agent_peak = max(agent_peak, resident_mib(pid))

    run = Run()
    run.output = count  # type: ignore[method-assign]  # counts instead of keeping
    await box.exec("head", "-c", str(300 * MIB), "/dev/zero", run=run)
    assert total == 300 * MIB
    assert peak - before < 20
    assert agent_peak - agent_before < 20


async def test_a_slow_reader_stops_the_writer_and_not_other_commands(box: Box) -> None:
    run = Run()
    go_on = anyio.Event()
    received = 0

    async def slow(stream: str, data: bytes) -> None:
        nonlocal received
        received += len(data)
        run.started.set()
        await go_on.wait()

    run.output = slow  # type: ignore[method-assign]  # waits for the test
    async with anyio.create_task_group() as group:

        async def body() -> None:
            await box.exec("head", "-c", str(20 * MIB), "/dev/zero", run=run)

        group.start_soon(body)
        await run.started.wait()
        for _ in range(20):
            assert (await box.exec("echo", "quick")).stdout == b"quick\n"
        assert received < MIB
        go_on.set()
    assert received == 20 * MIB


async def test_a_large_upload_at_bounded_memory(box: Box) -> None:
    pid = await agent_pid(box)
    before, agent_before = resident_mib(), resident_mib(pid)
    block = bytes(MIB)

    async def upload() -> AsyncIterator[StdinItem]:
        for _ in range(200):
            yield block
            assert resident_mib() - before < 30
            assert resident_mib(pid) - agent_before < 20

    run = await box.exec("wc", "-c", stdin=upload())
    assert run.stdout.strip() == str(200 * MIB).encode()
