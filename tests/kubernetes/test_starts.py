"""Starts that fail: what they say, that they say it soon, and that nothing is left of them."""

import anyio
import pytest

from sandboxkit import Operation, Session
from sandboxkit.errors import (
    CapacityError,
    ImageNotFoundError,
    SandboxStartError,
)
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.types import SandboxSpec
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.here import Box, sandboxes

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


async def test_a_start_that_fails_leaves_nothing(
    cluster: Cluster, provider: KubernetesProvider, room: str
) -> None:
    for spec, error, expected in (
        (SandboxSpec(image="No//SUCH"), ImageNotFoundError, "No//SUCH"),
        (SandboxSpec(user="nobody-here"), SandboxStartError, "nobody-here"),
        (SandboxSpec(workdir="/etc/passwd/deep"), SandboxStartError, "workdir"),
    ):
        with pytest.raises(error, match=expected) as caught:
            await provider.create(spec)
        assert type(caught.value) is error
        assert sandboxes(cluster, room) == []


async def test_a_start_that_takes_too_long_leaves_nothing(cluster: Cluster, room: str) -> None:
    provider = KubernetesProvider(start_timeout=4, gpu_resource="example.com/none")
    with pytest.raises(CapacityError, match="Insufficient") as caught:
        await provider.create(SandboxSpec(gpu="1"))
    assert caught.value.retryable
    assert sandboxes(cluster, room) == []
    await provider.aclose()


async def test_explain_says_what_a_start_waits_for(cluster: Cluster, room: str) -> None:
    provider = KubernetesProvider(node_selector={"no-such": "label"})
    async with Session(provider) as session:
        starting = session.sandbox().start()
        with anyio.fail_after(60):
            while "waits: Unschedulable" not in session.explain():
                await anyio.sleep(0.1)
        starting.cancel()
    await Operation(provider.aclose())  # on the loop that the session used it on
    assert sandboxes(cluster, room) == []


async def test_placing_is_what_the_api_server_takes(cluster: Cluster, room: str) -> None:
    provider = KubernetesProvider(
        queue="team-a",
        topology_spread="kubernetes.io/hostname",
        priority_class="system-node-critical",
        start_timeout=120,
    )
    sandbox_id = await provider.create(SandboxSpec())
    (pod,) = cluster.pods(room)
    await provider.delete(sandbox_id)
    await provider.aclose()
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert pod["spec"]["priorityClassName"] == "system-node-critical"
    assert pod["spec"]["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"


async def test_an_agent_that_somebody_deleted_is_stored_again(
    cluster: Cluster, provider: KubernetesProvider, room: str
) -> None:
    path = f"/api/v1/namespaces/{room}/configmaps"

    def parts() -> set[str]:
        names = {each["metadata"]["name"] for each in cluster.request("GET", path)["items"]}
        return {name for name in names if name.startswith("sandboxkit-agent-")}

    await provider.delete(await provider.create(SandboxSpec()))
    before = parts()
    assert len(before) >= 2
    cluster.request("DELETE", f"{path}/{sorted(before)[-1]}")
    sandbox_id = await provider.create(SandboxSpec())
    assert await Box(provider, sandbox_id).run("echo", "up") == (0, "up\n", "")
    await provider.delete(sandbox_id)
    # A node may have kept what it knew; a new client stores what it does not find.
    other = KubernetesProvider()
    await other.delete(await other.create(SandboxSpec()))
    await other.aclose()
    assert parts() == before


async def test_a_scratch_image_will_do(cluster: Cluster, provider: KubernetesProvider) -> None:
    sandbox_id = await provider.create(SandboxSpec(image="sandboxkit/scratch:1"))
    await provider.write_file(sandbox_id, "/workspace/file", b"content", mode=None)
    assert await provider.read_file(sandbox_id, "/workspace/file", max_bytes=100) == b"content"
    await provider.delete(sandbox_id)
