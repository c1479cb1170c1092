"""How sandboxes end: by their lease, their lifetime, a deletion; and what is left of them."""

import os
import subprocess
import sys
import time

import anyio
import pytest

from sandboxkit.errors import ConfigurationError, SandboxNotFoundError, SandboxTerminatedError
from sandboxkit.provider import StreamName
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.providers.kubernetes._sweep import PodSweeper
from sandboxkit.types import Command, SandboxState
from tests.docker.boxes import Box, Boxes
from tests.kubernetes.here import PROGRAMS

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

_LEASE = 8.0
_LATE = 40.0
"""Seconds that a loaded machine may take longer than it should."""


def killed(how: str) -> str:
    """The id of a sandbox whose owner, another process, was killed."""
    environment = {**os.environ, "SANDBOXKIT_KUBERNETES_LEASE": f"{_LEASE:g}"}
    argv = [sys.executable, "-c", PROGRAMS["lifetime"]["owner"], how]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            return process.stdout.readline().strip()
        finally:
            process.kill()


async def until_stopped(provider: KubernetesProvider, sandbox_id: str, within: float) -> None:
    with anyio.fail_after(within):
        while (await provider.get(sandbox_id)).state is not SandboxState.STOPPED:
            await anyio.sleep(0.2)


async def test_the_lease_ends_the_sandbox_of_a_killed_owner_alone(
    boxes: Boxes[KubernetesProvider],
) -> None:
    """Neither a detached one nor that of an owner that is idle."""
    provider, kept = boxes.provider(), await boxes.start(boxes.provider(lease=_LEASE))
    detached, ended = Box(provider, killed("detach")), Box(provider, killed("keep"))
    began = time.monotonic()
    assert (await provider.get(ended.id)).state is not SandboxState.STOPPED
    await until_stopped(provider, ended.id, _LEASE + _LATE)
    with pytest.raises(SandboxNotFoundError):
        await ended.run("true")
    await anyio.sleep(max(0.0, began + _LEASE + 4 - time.monotonic()))
    for box in (detached, kept):
        assert await box.run("echo", "here") == (0, "here\n", "")
    for box in (detached, ended):
        await provider.delete(box.id)


async def test_a_deletion_by_somebody_else_is_the_reason(boxes: Boxes[KubernetesProvider]) -> None:
    box, other, runs = await boxes.start(), boxes.provider(), anyio.Event()

    async def remove() -> None:
        await runs.wait()
        await other.delete(box.id)

    async def output(stream: StreamName, chunk: bytes) -> None:
        runs.set()

    command = Command(("sh", "-c", "echo runs; exec sleep 1000"))
    async with anyio.create_task_group() as group:
        group.start_soon(remove)
        with pytest.raises(SandboxTerminatedError, match="deleted"):
            await box.provider.exec(box.id, command, output)
    with pytest.raises(SandboxNotFoundError):
        await box.provider.get(box.id)
    for other_id in (box.id, "sandboxkit-0123456789abcdef", "no/such:name"):
        await box.provider.delete(other_id)


async def test_a_renewal_is_noted_up_to_what_kubernetes_itself_would_end(
    boxes: Boxes[KubernetesProvider],
) -> None:
    first = f"{time.time() + 60:.0f}"
    provider = boxes.provider(max_lifetime=700)
    box = await boxes.start(provider, lifetime=60, tags={"sandboxkit.expires": first})

    async def left() -> float:
        info = await provider.get(box.id)
        assert info.expires_at is not None
        assert info.tags["sandboxkit.expires"] == first
        return info.expires_at.timestamp() - time.time()

    assert await left() < 61
    with pytest.raises(ConfigurationError, match="max_lifetime"):
        await provider.renew(box.id, 3600)
    assert await left() < 61
    await provider.renew(box.id, 300)
    assert 200 < await left() < 301


async def test_finished_sandboxes_are_swept(boxes: Boxes[KubernetesProvider]) -> None:
    provider = boxes.provider()
    alive = await boxes.start(provider)
    ended = await boxes.start(provider, lifetime=2)
    await until_stopped(provider, ended.id, _LATE)
    for kept, swept, left in (
        (3600, 0, {alive.id, ended.id}),
        (0, 1, {alive.id}),
        (0, 0, {alive.id}),
    ):
        assert await PodSweeper(provider._api, kept=kept).sweep() == swept
        assert {info.id async for info in provider.list({})} == left
