"""How sandboxes end: by their lease, their lifetime, a deletion; and what is left of them."""

import os
import signal
import subprocess
import sys
import time
from contextlib import aclosing

import anyio
import pytest

from sandboxkit.errors import ConfigurationError, SandboxNotFoundError, SandboxTerminatedError
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.providers.kubernetes._sweep import PodSweeper
from sandboxkit.types import SandboxInfo, SandboxSpec, SandboxState
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.rooms import Box, provider, room

__all__ = ["provider", "room"]

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

_LEASE = 8.0
_LATE = 40.0
"""Seconds that a loaded machine may take longer than it should."""
_OWNER = """
import sys, threading
from sandboxkit import Session
with Session("kubernetes", detach=sys.argv[1] == "detach", lifetime=600) as session:
    sandbox = session.sandbox()
    sandbox.exec(["true"], check=True).result(120)
    running = sandbox.exec(["sleep", "1000"])
    print(sandbox.id, flush=True)
    threading.Event().wait()
"""


def owner(how: str) -> "tuple[subprocess.Popen[str], str]":
    """Another process with a sandbox, and its id."""
    environment = {**os.environ, "SANDBOXKIT_KUBERNETES_LEASE": f"{_LEASE:g}"}
    process = subprocess.Popen(
        [sys.executable, "-c", _OWNER, how], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    with process.stdout:
        return process, process.stdout.readline().strip()


async def until_stopped(provider: KubernetesProvider, sandbox_id: str, within: float) -> float:
    """How long it took, in seconds."""
    began = time.monotonic()
    with anyio.fail_after(within):
        while (await provider.get(sandbox_id)).state is not SandboxState.STOPPED:
            await anyio.sleep(0.2)
    return time.monotonic() - began


async def listed(provider: KubernetesProvider) -> list[SandboxInfo]:
    async with aclosing(provider.list({})) as found:  # type: ignore[type-var]  # it is a generator
        return [info async for info in found]


async def test_a_killed_owners_sandbox_ends_within_the_lease(
    cluster: Cluster, provider: KubernetesProvider
) -> None:
    process, sandbox_id = owner("keep")
    try:
        await anyio.sleep(_LEASE / 2)
        assert (await provider.get(sandbox_id)).state is SandboxState.RUNNING
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    await until_stopped(provider, sandbox_id, _LEASE + _LATE)
    with pytest.raises(SandboxNotFoundError):
        await Box(provider, sandbox_id).run("true")
    await provider.delete(sandbox_id)


async def test_a_detached_sandbox_outlives_its_owner(
    cluster: Cluster, provider: KubernetesProvider
) -> None:
    process, sandbox_id = owner("detach")
    process.send_signal(signal.SIGKILL)
    process.wait()
    await anyio.sleep(_LEASE + 4)
    assert await Box(provider, sandbox_id).run("echo", "here") == (0, "here\n", "")
    await provider.delete(sandbox_id)


async def test_an_idle_owner_keeps_its_sandbox(cluster: Cluster, room: str) -> None:
    provider = KubernetesProvider(lease=8)
    sandbox_id = await provider.create(SandboxSpec())
    await anyio.sleep(12)
    assert await Box(provider, sandbox_id).run("echo", "here") == (0, "here\n", "")
    await provider.delete(sandbox_id)
    await provider.aclose()


async def test_a_lifetime_that_passes_is_the_reason(
    cluster: Cluster, provider: KubernetesProvider
) -> None:
    sandbox_id = await provider.create(SandboxSpec(lifetime=4))
    with pytest.raises(SandboxTerminatedError, match="lifetime is over"):
        await Box(provider, sandbox_id).run("sleep", "1000")
    await until_stopped(provider, sandbox_id, _LATE)
    await provider.delete(sandbox_id)


async def test_a_deletion_by_somebody_else_is_the_reason(
    cluster: Cluster, provider: KubernetesProvider
) -> None:
    sandbox_id = await provider.create(SandboxSpec())
    other = KubernetesProvider()

    async def remove() -> None:
        await anyio.sleep(1)
        await other.delete(sandbox_id)

    async with anyio.create_task_group() as group:
        group.start_soon(remove)
        with pytest.raises(SandboxTerminatedError, match="deleted"):
            await Box(provider, sandbox_id).run("sleep", "1000")
    await other.aclose()
    with pytest.raises(SandboxNotFoundError):
        await provider.get(sandbox_id)
    await provider.delete(sandbox_id)


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
    assert {info.id for info in await listed(provider)} == {alive, ended}
    assert await PodSweeper(provider._api, kept=0).sweep() == 1
    assert {info.id for info in await listed(provider)} == {alive}
    assert await PodSweeper(provider._api, kept=0).sweep() == 0
    await provider.delete(alive)


async def test_a_deletion_is_repeated_without_harm(
    cluster: Cluster, provider: KubernetesProvider
) -> None:
    sandbox_id = await provider.create(SandboxSpec())
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(provider.delete, sandbox_id)
    await provider.delete(sandbox_id)
    await provider.delete("sandboxkit-0123456789abcdef")
    await provider.delete("no/such:name")
    assert await listed(provider) == []
