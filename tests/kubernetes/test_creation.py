"""A creation whose answer is lost, or late: one sandbox or none, and never two."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from sandboxkit.errors import ProviderUnavailableError
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.types import SandboxSpec
from tests.faults import Drop, Fault, FaultProxy, HttpAnswer, Late, Reset
from tests.faults._plan import Request
from tests.kubernetes.cluster import SCRIPT, Cluster, wait_until
from tests.kubernetes.here import Box, sandboxes

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

_UNAVAILABLE = (
    b'{"kind": "Status", "code": 503, "reason": "ServiceUnavailable", "message": "later"}'
)
_CONFIG = """
apiVersion: v1
kind: Config
current-context: a
contexts: [{{name: a, context: {{cluster: a, user: a, namespace: {namespace}}}}}]
clusters: [{{name: a, cluster: {{server: "{server}"}}}}]
users: [{{name: a, user: {{}}}}]
"""


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[FaultProxy]:
    """The API server without TLS, behind a proxy that can break its connections."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # The last option lets exec calls pass.
    options = [f"--port={port}", "--disable-filter=true"]
    process = subprocess.Popen(
        [str(SCRIPT), "kubectl", "proxy", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: _listens(port), "kubectl's proxy")
        with FaultProxy(f"http://127.0.0.1:{port}") as proxy:
            yield proxy
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class Once:
    """A plan: these faults for the first creations of pods, and none for anything else."""

    def __init__(self, *faults: Fault) -> None:
        self.left = list(faults)

    def __call__(self, request: Request) -> Fault | None:
        if request.line.startswith("POST ") and "/pods " in request.line and self.left:
            return self.left.pop(0)
        return None


def through(proxy: FaultProxy, room: str, folder: Path) -> KubernetesProvider:
    config = folder / "kubeconfig"
    config.write_text(_CONFIG.format(server=proxy.url, namespace=room))
    return KubernetesProvider(kubeconfig=str(config), timeout=5)


@pytest.mark.parametrize(
    "faults",
    [
        (Drop(),),
        (Drop("reset"),),
        (Reset(),),
        (Drop(), Drop()),
        (HttpAnswer(503, _UNAVAILABLE),),
        (Late(1.0),),
        (Drop("stall"),),
    ],
    ids=[
        "dropped",
        "reset after",
        "reset before",
        "dropped twice",
        "unavailable",
        "late",
        "silent",
    ],
)
async def test_a_lost_answer_creates_one_sandbox(
    cluster: Cluster, room: str, proxy: FaultProxy, tmp_path: Path, faults: tuple[Fault, ...]
) -> None:
    provider = through(proxy, room, tmp_path)
    proxy.plan = plan = Once(*faults)
    sandbox_id = await provider.create(SandboxSpec())
    assert plan.left == []
    assert [each.partition(" ")[0] for each in sandboxes(cluster, room)] == [sandbox_id]
    assert await Box(provider, sandbox_id).run("echo", "up") == (0, "up\n", "")
    await provider.delete(sandbox_id)
    await provider.aclose()
    assert sandboxes(cluster, room) == []


async def test_a_creation_that_is_cancelled_at_any_moment_leaves_nothing(
    cluster: Cluster, room: str
) -> None:
    provider = KubernetesProvider()
    for moment in (0.02, 0.3, 1.0):
        with anyio.move_on_after(moment) as scope:
            await provider.delete(await provider.create(SandboxSpec()))
        assert scope.cancelled_caught or moment > 0.3
    await provider.aclose()
    wait_until(lambda: sandboxes(cluster, room) == [], "the end of what was cancelled")


async def test_a_missing_server_creates_no_sandbox(room: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        server = f"http://127.0.0.1:{free.getsockname()[1]}"
    config = tmp_path / "kubeconfig"
    config.write_text(_CONFIG.format(server=server, namespace=room))
    provider = KubernetesProvider(kubeconfig=str(config), timeout=2)
    with anyio.fail_after(60), pytest.raises(ProviderUnavailableError) as caught:
        await provider.create(SandboxSpec())
    assert caught.value.retryable
    await provider.aclose()
