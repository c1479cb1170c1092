"""Pods that wait in a queue of Kueue: their message, their start once admitted, and their end.

The tests' server has no scheduling gates. Here no scheduler knows the pods, and the tests write what a newer
server and Kueue write: conditions into the status, and the node.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest

from sandboxkit.errors import (
    CapacityError,
    ProviderUnavailableError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.integrations.rewards._boundary import Phase, is_transient, verdict_of
from sandboxkit.integrations.rewards._verdict import Outcome
from sandboxkit.providers.kubernetes import KubernetesProvider, _ends
from sandboxkit.providers.kubernetes._exec import PodExecStream
from sandboxkit.providers.kubernetes._starting import Start
from sandboxkit.providers.kubernetes._watch import PodStatus
from sandboxkit.types import SandboxSpec
from tests.kubernetes.bare import connected, create, manifest, remove
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.rooms import Box, provider, room

__all__ = ["provider", "room"]

pytestmark = pytest.mark.anyio

_GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}


class Queued:
    """A pod with the label of a queue, which no scheduler gives a node."""

    def __init__(self, cluster: Cluster, namespace: str, *, pod: str = "pod") -> None:
        self._cluster, self._name = cluster, pod
        self._path = f"/api/v1/namespaces/{namespace}/pods/{pod}"

    # Any: conditions are JSON.
    async def say(self, condition: dict[str, Any]) -> None:
        """Write a condition into the pod's status."""
        await self._ask(
            "PATCH",
            "/status",
            {"status": {"conditions": [condition]}},
            "application/strategic-merge-patch+json",
        )

    async def admit(self) -> None:
        """Give the pod the node, which also ends its condition."""
        target = {"apiVersion": "v1", "kind": "Node", "name": "node1"}
        await self._ask("POST", "/binding", {"metadata": {"name": self._name}, "target": target})

    async def _ask(
        self, method: str, part: str, body: dict[str, Any], content: str = "application/json"
    ) -> None:
        await anyio.to_thread.run_sync(
            lambda: self._cluster.request(method, self._path + part, body, content=content)
        )


@asynccontextmanager
async def queued(
    cluster: Cluster, namespace: str
) -> AsyncIterator[tuple[Queued, Callable[[float], Start]]]:
    """A pod that waits in the queue team-a, and its Start with a time limit (s); it is removed afterwards."""

    async def restore() -> None: ...

    async with connected(cluster, namespace) as (api, watch):

        def start(seconds: float) -> Start:
            def connect() -> Awaitable[PodExecStream]:
                return api.exec("pod", "sandbox", ["cat"])

            return Start(api, watch, "pod", connect, restore, seconds=seconds)

        body = manifest("pod", schedulerName="nobody")
        body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team-a"
        watch.follow("pod")
        try:
            _, pod = await create(cluster, namespace, body)
            watch.follow("pod", pod)
            found = Queued(cluster, namespace)
            await found.say(_GATED)
            seen = await watch.until("pod", lambda seen: _ends.wait_of(seen) != "", seconds=30)
            assert _ends.wait_of(seen) == "pod waits: it is not admitted yet by the queue 'team-a'"
            yield found, start
        finally:
            with anyio.CancelScope(shield=True):
                await remove(cluster, namespace, "pod")


async def test_a_start_waits_for_the_admission_by_its_queue(
    cluster: Cluster, namespace: str
) -> None:
    async with queued(cluster, namespace) as (pod, start):
        with pytest.raises(CapacityError, match=r"within 1 s.*queue 'team-a'.*start_timeout"):
            await start(1).stream()
        async with anyio.create_task_group() as group:
            group.start_soon(pod.admit)
            stream = await start(60).stream()
            await stream.send(b"admitted")
            assert await stream.receive() == b"admitted"
            await stream.aclose()


async def test_a_start_that_was_displaced_is_made_again_elsewhere(
    cluster: Cluster, namespace: str
) -> None:
    for kind, reason, words in (
        ("TerminationTarget", "WorkloadEvictedDueToPreempted", "queue took the admission back"),
        ("DisruptionTarget", "PreemptionByScheduler", "a pod of a higher priority preempted it"),
    ):
        async with queued(cluster, namespace) as (pod, start):
            told = {"type": kind, "status": "True", "reason": reason, "message": "by another"}
            await pod.say(told)
            await remove(cluster, namespace, "pod")
            with pytest.raises(CapacityError, match=rf"{words} \(by another\)") as caught:
                await start(30).stream()
        assert is_transient(caught.value)


async def test_a_command_whose_sandbox_is_displaced_names_who_deleted_it(
    cluster: Cluster, room: str, provider: KubernetesProvider
) -> None:
    for kind, reason, words in (
        ("TerminationTarget", "WorkloadEvictedDueToPreempted", "queue took the admission back"),
        ("DisruptionTarget", "EvictionByEvictionAPI", "when a node is drained"),
    ):
        sandbox_id = await provider.create(SandboxSpec())
        told = {"type": kind, "status": "True", "reason": reason, "message": "by another"}

        async def displace(name: str, condition: dict[str, str]) -> None:
            await anyio.sleep(1)  # the command runs
            await Queued(cluster, room, pod=name).say(condition)
            await remove(cluster, room, name, grace=1)

        async with anyio.create_task_group() as group:
            group.start_soon(displace, sandbox_id, told)
            with pytest.raises(SandboxTerminatedError, match=rf"{words} \(by another\)") as caught:
                await Box(provider, sandbox_id).run("sleep", "60")
            assert not caught.value.by_command
        await provider.delete(sandbox_id)


def test_a_gate_without_a_queue_is_named() -> None:
    spec = {"schedulingGates": [{"name": "example.com/budget"}]}
    pod = {"metadata": {"name": "pod"}, "spec": spec, "status": {"phase": "Pending"}}
    assert (
        _ends.wait_of(PodStatus(pod)) == "pod waits: it is not admitted yet by example.com/budget"
    )


def test_an_admission_that_is_taken_back_is_an_infrastructure_error() -> None:
    condition = {"type": "TerminationTarget", "status": "True", "message": "Preempted by another"}
    pod = {
        "metadata": {"name": "pod", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {},
        "status": {"phase": "Running", "conditions": [condition]},
    }
    error = _ends.end_error(PodStatus(pod), sandbox_id="pod")
    assert "queue took the admission back (Preempted by another)" in str(error)
    assert not error.by_command
    assert verdict_of(error, Phase.WORKED_IN).outcome is Outcome.INFRA_ERROR


def test_a_start_that_the_end_of_containerd_interrupted_may_succeed_elsewhere() -> None:
    """Seen when containerd, or the container's first process, was killed during a start."""
    for message, kind in (
        (
            "failed to create containerd task: failed to create shim task: context canceled: unknown",
            ProviderUnavailableError,
        ),
        ("error reading from server: EOF", ProviderUnavailableError),
        (
            'failed to start containerd task "7654": cannot start a stopped process: unknown',
            ProviderUnavailableError,
        ),
        ("failed to create containerd task: exec: not found", SandboxStartError),
    ):
        ended = {"reason": "StartError", "exitCode": 128, "message": message}
        container = {"name": "sandbox", "state": {"terminated": ended}}
        status = {"phase": "Failed", "containerStatuses": [container]}
        pod = {"metadata": {"name": "pod"}, "spec": {"containers": []}, "status": status}
        error = _ends.start_error(PodStatus(pod))
        assert type(error) is kind
        # Until the pod has ended, its node may still try again.
        container["state"] = {"waiting": {"reason": "RunContainerError", "message": message}}
        status["phase"] = "Pending"
        waits = _ends.start_error(PodStatus(pod))
        assert waits is None if kind is ProviderUnavailableError else type(waits) is kind


def test_a_node_without_room_for_the_copy_of_a_snapshot_has_no_capacity() -> None:
    message = "sandbox agent: write /.sandboxkit-snapshot/archive: no space left on device"
    ended = {"reason": "Error", "exitCode": 1, "message": message}
    container = {"name": "snapshot", "state": {"terminated": ended}}
    status = {"phase": "Failed", "initContainerStatuses": [container]}
    pod = {"metadata": {"name": "pod"}, "spec": {"containers": []}, "status": status}
    assert type(_ends.start_error(PodStatus(pod))) is CapacityError
