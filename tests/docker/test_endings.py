"""Who ended a command in a container: its program, a signal, or the kernel for want of memory."""

from collections.abc import AsyncIterator

import anyio
import pytest

from sandboxkit.provider import StreamName
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.types import Command, Ending, Exit, SandboxSpec
from tests.docker.conftest import Box

pytestmark = pytest.mark.anyio

HOG = "b = bytearray()\nwhile True: b += b'x' * 10_000_000"


async def ended(box: Box, code: str) -> Exit:
    async def ignore(stream: StreamName, chunk: bytes) -> None: ...

    with anyio.fail_after(60):
        return await box.provider.exec(box.id, Command(("python", "-c", code)), ignore)


@pytest.fixture
async def small(provider: DockerProvider, tag: str) -> AsyncIterator[Box]:
    # So little of a processor that a busy machine's own slowness is more than that.
    spec = SandboxSpec(tags={"test": tag}, memory_mb=64, cpus=0.1)
    sandbox_id = await provider.create(spec)
    yield Box(provider, sandbox_id)
    await provider.delete(sandbox_id)


async def test_a_memory_hog_is_out_of_memory(small: Box) -> None:
    done = await ended(small, HOG)
    assert (done.status, done.ending, done.usage.oom_kills) == (137, Ending.OUT_OF_MEMORY, 1)


async def test_a_busy_program_past_its_share_was_throttled(small: Box) -> None:
    # Ten of the shares of a tenth of a second, however long it stands still meanwhile.
    code = "import time\nwhile time.process_time() < 0.13: pass"
    throttled = (await ended(small, code)).usage.throttled_seconds
    assert throttled is not None
    assert 0 < throttled < 60
