"""Flow control: large output at bounded memory on both sides, and a slow reader blocks nobody."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from sandboxkit.types import StdinItem
from tests.agent.conftest import Box, Run, at_start

pytestmark = pytest.mark.anyio

MIB = 1 << 20


def resident_mib(pid: int | str = "self") -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


async def test_300_mb_of_output_at_bounded_memory(box: Box) -> None:
    total = 0
    peak = 0.0
    pid = box.agent_pid()
    before, agent_before = resident_mib(), resident_mib(pid)
    agent_peak = 0.0

    async def count(data: bytes) -> None:
        nonlocal total, peak, agent_peak
        total += len(data)
        if total % (8 * MIB) < len(data):
            peak = max(peak, resident_mib())
            agent_peak = max(agent_peak, resident_mib(pid))

    await box.exec("head", "-c", str(300 * MIB), "/dev/zero", run=Run(count))
    assert total == 300 * MIB
    assert peak - before < 20
    assert agent_peak - agent_before < 20


async def test_a_slow_reader_stops_the_writer_and_not_other_commands(box: Box) -> None:
    go_on, received = anyio.Event(), 0

    async def slow(data: bytes) -> None:
        nonlocal received
        received += len(data)
        await go_on.wait()

    async def look() -> None:
        for _ in range(20):
            assert (await box.exec("echo", "quick")).stdout == b"quick\n"
        assert received < MIB
        go_on.set()

    run = Run(slow)
    async with at_start(run, look):
        await box.exec("head", "-c", str(20 * MIB), "/dev/zero", run=run)
    assert received == 20 * MIB


async def test_a_large_upload_at_bounded_memory(box: Box) -> None:
    pid = box.agent_pid()
    before, agent_before = resident_mib(), resident_mib(pid)
    block = bytes(MIB)

    async def upload() -> AsyncIterator[StdinItem]:
        for _ in range(200):
            yield block
            assert resident_mib() - before < 30
            assert resident_mib(pid) - agent_before < 20

    run = await box.exec("wc", "-c", stdin=upload())
    assert run.stdout.strip() == str(200 * MIB).encode()
