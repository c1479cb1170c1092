"""Who ended a command, from what the host's control groups counted meanwhile."""

import os

import anyio
import pytest

from sandboxkit.providers.local import LocalProvider
from sandboxkit.types import Command, Ending, Exit
from tests.components import needs_control_group
from tests.local.conftest import Box, Run, launched, make

pytestmark = pytest.mark.anyio
needs_memory = needs_control_group("memory")
needs_cpu = needs_control_group("cpu")

HOG = "b = bytearray()\nwhile True: b += b'x' * 10_000_000"


async def ended(box: Box, code: str) -> Exit:
    command = Command(("python3", "-c", code))
    with anyio.fail_after(60):
        return await box.provider.exec(box.id, command, Run().output)


@needs_memory
async def test_a_hog_among_the_children_leaves_the_commands_own_end(
    provider: LocalProvider,
) -> None:
    code = f"import subprocess, sys\nsys.exit(subprocess.call(['python3', '-c', {HOG!r}]) == -9)"
    done = await ended(await make(provider, memory_mb=64), code)
    assert (done.status, done.ending, done.usage.oom_kills) == (1, Ending.EXITED, 1)


@needs_memory
async def test_an_earlier_hog_is_not_counted_again(provider: LocalProvider) -> None:
    box = await make(provider, memory_mb=64)
    await ended(box, HOG)
    done = await ended(box, "import os; os.kill(os.getpid(), 9)")
    assert (done.ending, done.usage.oom_kills) == (Ending.SIGNAL, 0)


@needs_memory
async def test_a_second_client_gets_the_same_outcome(provider: LocalProvider) -> None:
    box = await make(provider, memory_mb=64)
    other = LocalProvider()
    try:
        done = await ended(Box(other, box.id), HOG)
    finally:
        await other.aclose()
    assert (done.ending, done.usage.oom_kills) == (Ending.OUT_OF_MEMORY, 1)


@needs_cpu
async def test_a_busy_program_past_its_share_was_throttled(provider: LocalProvider) -> None:
    # So little of a processor that a busy machine's own slowness is more than that.
    box = await make(provider, cpus=0.1)
    # Ten of the shares of a tenth of a second, however long it stands still meanwhile.
    code = "import time\nwhile time.process_time() < 0.13: pass"
    throttled = (await ended(box, code)).usage.throttled_seconds
    assert throttled is not None
    assert 0 < throttled < 60
    idle = (await ended(box, "import time; time.sleep(0.2)")).usage.throttled_seconds
    assert idle is not None
    assert idle < throttled


@needs_memory
@needs_cpu
@pytest.mark.parametrize(("cpus", "expected"), [(None, 2), (4.0, 4)])
async def test_counts_that_the_kernel_cannot_change_are_read_once(
    provider: LocalProvider, monkeypatch: pytest.MonkeyPatch, cpus: float | None, expected: int
) -> None:
    box = await make(provider, cpus=cpus)
    assert (await ended(box, "print(1)")).usage.throttled_seconds == 0.0
    counters = launched(provider, box.id).counters
    files, read, pread = (counters._oom_kills, counters._throttled), list[int](), os.pread

    def noted(file: int, size: int, at: int) -> bytes:
        read.extend([file] if file in files else [])
        return pread(file, size, at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", noted)
        assert (await ended(box, "print(1)")).usage.throttled_seconds == 0.0
    assert len(read) == expected
