"""Fake pods for load tests: bound to fake nodes, and marked as running although no kubelet runs them."""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping

from benchmarks.kubernetes_api import Api, Json

PODS_A_NODE = 100


@contextlib.asynccontextmanager
async def nodes(api: Api, count: int) -> AsyncIterator[list[str]]:
    """Create fake nodes and yield their names; they report that they are ready until the context ends."""
    prefix = f"fake-{secrets.token_hex(3)}"
    names = [f"{prefix}-{number}" for number in range(count)]
    # Keeps all other pods off these nodes.
    taint = {"key": "example.com/fake", "effect": "NoSchedule"}

    async def beat() -> None:
        while True:
            await asyncio.sleep(10)
            for name in names:
                await api.patch(*_heartbeat(name))

    try:
        for name in names:
            node = {"metadata": {"name": name}, "spec": {"unschedulable": True, "taints": [taint]}}
            await api.call("POST", "/api/v1/nodes", node)
            await api.patch(*_heartbeat(name))
        async with asyncio.TaskGroup() as group:
            beating = group.create_task(beat())
            yield names
            beating.cancel()
    finally:
        for name in names:
            await api.call("DELETE", f"/api/v1/nodes/{name}", allowed=(404,))


def _heartbeat(name: str) -> tuple[str, Json]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {"type": "Ready", "status": "True", "reason": "Fake", "lastHeartbeatTime": now}
    room = {"cpu": "64", "memory": "256Gi", "pods": str(PODS_A_NODE)}
    return (
        f"/api/v1/nodes/{name}/status",
        {"status": {"conditions": [ready], "capacity": room, "allocatable": room}},
    )


def pod(name: str, node: str, labels: Mapping[str, str]) -> Json:
    """Return the manifest of a pod about as large as a sandbox's, bound to the node without a scheduler."""
    return {
        "metadata": {
            "name": name,
            "labels": {**labels, **{f"example.com/t-{n:016x}": "0" * 40 for n in range(6)}},
            "annotations": {
                "example.com/tags": json.dumps({f"tag-{n}": "0" * 40 for n in range(6)})
            },
        },
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": f"v{n}", "emptyDir": {"sizeLimit": "1Gi"}} for n in range(4)],
            "containers": [
                {
                    "name": "sandbox",
                    "image": "sandboxkit/python:3.11",
                    "command": ["agent", *(f"--flag-{n}=value" for n in range(12))],
                    "resources": {
                        "requests": {"cpu": "50m", "memory": "64Mi"},
                        "limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "10Gi"},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "KILL", "SETUID"]},
                    },
                    "volumeMounts": [{"name": f"v{n}", "mountPath": f"/v{n}"} for n in range(4)],
                }
            ],
        },
    }


def running(address: int) -> Json:
    """Return the status that a kubelet reports for a running pod."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    kinds = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "status": {
            "phase": "Running",
            "startTime": now,
            "podIP": f"10.120.{address >> 8 & 255}.{address & 255}",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds
            ],
            "containerStatuses": [
                {
                    "name": "sandbox",
                    "image": "docker.io/sandboxkit/python:3.11",
                    "imageID": "sha256:" + "0" * 64,
                    "containerID": "containerd://" + "0" * 64,
                    "ready": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": now}},
                }
            ],
        }
    }
