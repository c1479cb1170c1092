"""How sandboxes end: by their lease, their lifetime, a deletion; and what is left of them."""

import os
import subprocess
import sys
import time
from contextlib import aclosing

import anyio
import pytest

from sandboxkit.errors import ConfigurationError, SandboxNotFoundError, SandboxTerminatedError
from sandboxkit.provider import StreamName
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.providers.kubernetes._sweep import PodSweeper
from sandboxkit.types import Command, SandboxSpec, SandboxState
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.here import PROGRAMS, Box

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


async def listed(provider: KubernetesProvider) -> set[str]:
    async with aclosing(provider.list({})) as found:  # type: ignore[type-var]  # it is a generator
        return {info.id async for info in found}


async def test_the_lease_ends_the_sandbox_of_a_killed_owner_alone(
    cluster: Cluster, provider: KubernetesProvider
) -> None:
    """Neither a detached one nor that of an owner that is idle."""
    idle = KubernetesProvider(lease=_LEASE)
    detached, kept = killed("detach"), await idle.create(SandboxSpec())
    ended = killed("keep")
    began = time.monotonic()
    assert (await provider.get(ended)).state is not SandboxState.STOPPED
    await until_stopped(provider, ended, _LEASE + _LATE)
    with pytest.raises(SandboxNotFoundError):
        await Box(provider, ended).run("true")
    await anyio.sleep(max(0.0, began + _LEASE + 4 - time.monotonic()))
    for owner, sandbox_id in ((provider, detached), (idle, kept)):
        assert await Box(owner, sandbox_id).run("echo", "here") == (0, "here\n", "")
    for sandbox_id in (detached, kept, ended):
        await provider.delete(sandbox_id)
    await idle.aclose()


async def test_a_deletion_by_somebody_else_is_the_reason(
    cluster: Cluster, provider: KubernetesProvider
) -> None:
    sandbox_id = await provider.create(SandboxSpec())
    other = KubernetesProvider()
    runs = anyio.Event()

    async def remove() -> None:
        await runs.wait()
        await other.delete(sandbox_id)

    async def output(stream: StreamName, chunk: bytes) -> None:
        runs.set()

    command = Command(("sh", "-c", "echo runs; exec sleep 1000"))
    async with anyio.create_task_group() as group:
        group.start_soon(remove)
        with pytest.raises(SandboxTerminatedError, match="deleted"):
            await provider.exec(sandbox_id, command, output)
    await other.aclose()
    with pytest.raises(SandboxNotFoundError):
        await provider.get(sandbox_id)
    for other_id in (sandbox_id, "sandboxkit-0123456789abcdef", "no/such:name"):
        await provider.delete(other_id)


async def test_a_renewal_is_noted_for_whoever_cleans_up(
    cluster: Cluster, provider: KubernetesProvider
) -> None:
    first = f"{time.time() + 60:.0f}"
    spec = SandboxSpec(lifetime=60, tags={"sandboxkit.expires": first})
    sandbox_id = await provider.create(spec)
    info = await provider.get(sandbox_id)
    assert info.expires_at is not None
    assert info.expires_at.timestamp() < time.time() + 61
    await provider.renew(sandbox_id, 3000)
    info = await provider.get(sandbox_id)
    assert info.expires_at is not None
    assert info.expires_at.timestamp() > time.time() + 2900
    assert info.tags["sandboxkit.expires"] == first
    await provider.delete(sandbox_id)


async def test_what_kubernetes_itself_would_end_cannot_be_renewed(
    cluster: Cluster, room: str
) -> None:
    provider = KubernetesProvider(max_lifetime=700)
    sandbox_id = await provider.create(SandboxSpec(lifetime=60))
    with pytest.raises(ConfigurationError, match="max_lifetime"):
        await provider.renew(sandbox_id, 3600)
    info = await provider.get(sandbox_id)
    assert info.expires_at is not None
    assert info.expires_at.timestamp() < time.time() + 100
    await provider.renew(sandbox_id, 300)
    await provider.delete(sandbox_id)
    await provider.aclose()


async def test_finished_sandboxes_are_swept(cluster: Cluster, provider: KubernetesProvider) -> None:
    alive = await provider.create(SandboxSpec())
    ended = await provider.create(SandboxSpec(lifetime=2))
    await until_stopped(provider, ended, _LATE)
    assert await PodSweeper(provider._api, kept=3600).sweep() == 0
    assert await listed(provider) == {alive, ended}
    assert await PodSweeper(provider._api, kept=0).sweep() == 1
    assert await listed(provider) == {alive}
    assert await PodSweeper(provider._api, kept=0).sweep() == 0
    await provider.delete(alive)
