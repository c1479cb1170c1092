"""Pods as a test wants them, made and removed past sandboxkit, and the two things that look at them."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread

from sandboxkit.providers.kubernetes import _ends
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._watch import PodWatch
from tests.data_here import beside
from tests.kubernetes.cluster import ApiError, Cluster

LABEL = "sandboxkit-test"


def manifest(
    name: str, container: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:  # Any: JSON, here and below
    """A pod of one container that sleeps, unless `container` and `spec` say something else."""
    made: dict[str, Any] = beside(__file__)
    made["metadata"]["name"] = name
    made["spec"]["containers"][0] |= container or {}
    made["spec"] |= spec
    return made


async def create(
    cluster: Cluster, namespace: str, body: dict[str, Any] | None = None
) -> tuple[str, dict[str, Any]]:
    """Create a pod; returns its name and what the server answered."""
    body = body or manifest("pod-" + secrets.token_hex(4))
    path = f"/api/v1/namespaces/{namespace}/pods"
    pod = await anyio.to_thread.run_sync(cluster.request, "POST", path, body)
    return body["metadata"]["name"], pod


async def remove(cluster: Cluster, namespace: str, name: str, grace: int = 0) -> None:
    """Delete a pod; with no grace it is gone from the API server at once."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    try:
        await anyio.to_thread.run_sync(
            cluster.request, "DELETE", path, {"gracePeriodSeconds": grace}
        )
    except ApiError as error:
        if error.status != 404:
            raise


@asynccontextmanager
async def running(
    cluster: Cluster,
    namespace: str,
    watch: PodWatch,
    container: dict[str, Any] | None = None,
    **spec: Any,
) -> AsyncIterator[str]:
    """The name of a pod that runs, and is followed; it is removed afterwards."""
    name = "pod-" + secrets.token_hex(4)
    watch.follow(name)
    try:
        _, pod = await create(cluster, namespace, manifest(name, container, **spec))
        watch.follow(name, pod)
        await watch.until(name, _ends.is_running, seconds=60)
        yield name
    finally:
        with anyio.CancelScope(shield=True):
            await remove(cluster, namespace, name)


@asynccontextmanager
async def connected(cluster: Cluster, namespace: str) -> AsyncIterator[tuple[Api, PodWatch]]:
    """Ours, of one namespace."""
    api = Api(kubeconfig=str(cluster.kubeconfig), namespace=namespace, timeout=20)
    watch = PodWatch(api, selector=f"{LABEL}=1")
    try:
        yield api, watch
    finally:
        with anyio.CancelScope(shield=True):
            await watch.aclose()
            await api.aclose()
