"""Starts: one sandbox or none when an answer is lost, what a failure says, and that nothing is left of any."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxkit import Operation, Session, errors
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.types import SandboxSpec
from tests.docker.boxes import Pods
from tests.faults import Drop, Fault, FaultProxy, HttpAnswer, Late, Request, Reset
from tests.kubernetes.answers import kubeconfig
from tests.kubernetes.cluster import SCRIPT, Cluster, wait_until
from tests.kubernetes.here import sandboxes
from tests.traces import assert_forgotten

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

_LATER = b'{"kind": "Status", "code": 503, "reason": "ServiceUnavailable", "message": "later"}'
MANY = pytest.param(200, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[FaultProxy]:
    """The API server without TLS, behind a proxy that can break its connections."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # The last option lets exec calls pass.
    argv = [str(SCRIPT), "kubectl", "proxy", f"--port={port}", "--disable-filter=true"]
    none = subprocess.DEVNULL
    process = subprocess.Popen(argv, stdout=none, stderr=none, start_new_session=True)

    def listens() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens, "kubectl's proxy")
        with FaultProxy(f"http://127.0.0.1:{port}") as proxy:
            yield proxy
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


_FAULTS: dict[str, tuple[Fault, ...]] = {
    "dropped": (Drop(),),
    "reset after": (Drop("reset"),),
    "reset before": (Reset(),),
    "dropped twice": (Drop(), Drop()),
    "unavailable": (HttpAnswer(503, _LATER),),
    "late": (Late(1.0),),
    "silent": (Drop("stall"),),
}


@pytest.mark.parametrize("name", _FAULTS)
async def test_a_lost_answer_creates_one_sandbox(
    boxes: Pods, cluster: Cluster, room: str, proxy: FaultProxy, tmp_path: Path, name: str
) -> None:
    left = list(_FAULTS[name])

    def plan(request: Request) -> Fault | None:
        creates = request.line.startswith("POST ") and "/pods " in request.line
        return left.pop(0) if creates and left else None

    path = str(kubeconfig(tmp_path, proxy.url, namespace=room))
    provider, proxy.plan = boxes.provider(kubeconfig=path, timeout=5), plan
    box = await boxes.start(provider)
    assert left == []
    assert [each.partition(" ")[0] for each in sandboxes(cluster, room)] == [box.id]
    assert await box.run("echo", "up") == (0, "up\n", "")
    await boxes.close()
    assert sandboxes(cluster, room) == []


async def test_a_creation_that_is_cancelled_at_any_moment_leaves_nothing(
    cluster: Cluster, provider: KubernetesProvider, room: str
) -> None:
    for moment in (0.02, 0.3, 1.0):
        with anyio.move_on_after(moment) as scope:
            await (await provider.create(SandboxSpec())).delete()
        assert scope.cancelled_caught or moment > 0.3
    wait_until(lambda: sandboxes(cluster, room) == [], "the end of what was cancelled")


async def test_a_missing_server_creates_no_sandbox(tmp_path: Path) -> None:
    path = str(kubeconfig(tmp_path, "http://127.0.0.1:1"))
    provider = KubernetesProvider(kubeconfig=path, timeout=2)
    with anyio.fail_after(60), pytest.raises(errors.ProviderUnavailableError) as caught:
        await provider.create(SandboxSpec())
    assert caught.value.retryable
    await provider.aclose()


async def test_a_start_that_fails_leaves_nothing(boxes: Pods, cluster: Cluster, room: str) -> None:
    # Any: options of every type.
    cases: list[tuple[dict[str, Any], type[errors.SandboxError], str]] = [
        ({"image": "No//SUCH"}, errors.ImageNotFoundError, "No//SUCH"),
        ({"user": "nobody-here"}, errors.SandboxStartError, "nobody-here"),
        ({"workdir": "/etc/passwd/deep"}, errors.SandboxStartError, "workdir"),
        ({"gpu": "1"}, errors.CapacityError, "Insufficient"),
    ]
    for spec, error, expected in cases:
        limits = {"start_timeout": 4, "gpu_resource": "example.com/none"} if "gpu" in spec else {}
        with pytest.raises(error, match=expected) as caught:
            await boxes.start(boxes.provider(**limits), **spec)
        assert type(caught.value) is error
        assert caught.value.retryable == (error is errors.CapacityError)
        assert sandboxes(cluster, room) == []


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


async def test_the_api_server_takes_the_placing(boxes: Pods, cluster: Cluster, room: str) -> None:
    spread = {"topology_spread": "kubernetes.io/hostname", "start_timeout": 120}
    placing = {"queue": "team-a", "priority_class": "system-node-critical", **spread}
    await boxes.start(boxes.provider(**placing))
    (pod,) = cluster.pods(room)
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert pod["spec"]["priorityClassName"] == "system-node-critical"
    assert pod["spec"]["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"


async def test_a_deleted_agent_is_stored_again(boxes: Pods, cluster: Cluster, room: str) -> None:
    path, provider = f"/api/v1/namespaces/{room}/configmaps", boxes.provider()

    def parts() -> set[str]:
        names = {each["metadata"]["name"] for each in cluster.request("GET", path)["items"]}
        return {name for name in names if name.startswith("sandboxkit-agent-")}

    await boxes.start(provider)
    before = parts()
    assert len(before) >= 2
    cluster.request("DELETE", f"{path}/{sorted(before)[-1]}")
    assert await (await boxes.start(provider)).run("echo", "up") == (0, "up\n", "")
    # A node may have kept what it knew; a new client stores what it does not find.
    await boxes.start()
    assert parts() == before


async def test_a_scratch_image_will_do(boxes: Pods) -> None:
    box = await boxes.start(image="sandboxkit/scratch:1")
    await box.inner.write_file("/workspace/file", b"content", mode=None)
    assert await box.inner.read_file("/workspace/file", max_bytes=100) == b"content"


@pytest.mark.parametrize("count", [8, MANY])
async def test_no_state_is_kept_of_ended_sandboxes(room: str, count: int) -> None:
    await assert_forgotten(KubernetesProvider, count)
