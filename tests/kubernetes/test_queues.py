"""Pods that wait in a queue of Kueue: their message, and their start once admitted.

The tests' server has no scheduling gates. Here no scheduler knows the pod, and the test writes what a newer
server and Kueue write: a condition into the status, and the node.
"""

from collections.abc import Awaitable

import anyio
import anyio.to_thread
import pytest

from sandboxkit.errors import CapacityError
from sandboxkit.providers.kubernetes import _ends
from sandboxkit.providers.kubernetes._exec import PodExecStream
from sandboxkit.providers.kubernetes._starting import Start
from tests.kubernetes.bare import connected, create, manifest, remove
from tests.kubernetes.cluster import Cluster

pytestmark = pytest.mark.anyio

_MERGE = "application/strategic-merge-patch+json"
_GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}


async def test_a_start_waits_for_the_admission_by_its_queue(
    cluster: Cluster, namespace: str
) -> None:
    async def restore() -> None: ...

    body = manifest("pod", schedulerName="nobody")
    body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team-a"
    path = f"/api/v1/namespaces/{namespace}/pods/pod"
    target = {"apiVersion": "v1", "kind": "Node", "name": "node1"}
    binding = {"metadata": {"name": "pod"}, "target": target}
    async with connected(cluster, namespace) as (api, watch):

        def connect() -> Awaitable[PodExecStream]:
            return api.exec("pod", "sandbox", ["cat"])

        async def admit() -> None:  # by the node, which also ends the condition
            await anyio.to_thread.run_sync(cluster.request, "POST", f"{path}/binding", binding)

        watch.follow("pod")
        _, pod = await create(cluster, namespace, body)
        watch.follow("pod", pod)
        gated = {"status": {"conditions": [_GATED]}}
        cluster.request("PATCH", f"{path}/status", gated, content=_MERGE)
        seen = await watch.until("pod", lambda seen: _ends.wait_of(seen) != "", seconds=30)
        assert _ends.wait_of(seen) == "pod waits: it is not admitted yet by the queue 'team-a'"
        with pytest.raises(CapacityError, match=r"within 1 s.*queue 'team-a'.*start_timeout"):
            await Start(api, watch, "pod", connect, restore, seconds=1).stream()
        async with anyio.create_task_group() as group:
            group.start_soon(admit)
            stream = await Start(api, watch, "pod", connect, restore, seconds=60).stream()
            await stream.send(b"admitted")
            assert await stream.receive() == b"admitted"
            await stream.aclose()
        await remove(cluster, namespace, "pod")
