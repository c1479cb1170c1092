"""A namespace of the cluster in which providers without arguments make their sandboxes."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.components import lack, reason
from tests.data_here import beside
from tests.kubernetes.cluster import ApiError, Cluster, find_cluster, wait_until

IMAGE = "sandboxkit/python:3.11"
_AGENT = "sandboxkit.dev/agent"
_SANDBOXES = "sandboxkit.dev/sandbox=1"
PROGRAMS: dict[str, dict[str, str]] = beside(__file__, "programs.toml")


def require_cluster() -> Cluster:
    """The cluster. Without it the test is skipped, or fails where CI requires Kubernetes."""
    cluster = find_cluster()
    if isinstance(cluster, str):
        lack(reason("cluster", "scripts/kube.sh up", cluster), "KUBERNETES")
    return cluster


@contextmanager
def new_namespace() -> Iterator[str]:
    """A namespace that providers without arguments use meanwhile; what is in it afterwards, but for the agent's
    parts, is removed and is a failure."""
    cluster, name = require_cluster(), f"test-{secrets.token_hex(5)}"
    variables = {"NAMESPACE": name, "IMAGE": IMAGE}
    given = {f"SANDBOXKIT_KUBERNETES_{key}": value for key, value in variables.items()}
    given["KUBECONFIG"] = str(cluster.kubeconfig)
    cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    try:
        wait_until(lambda: _has_account(cluster, name), "the default service account")
        with mock.patch.dict(os.environ, given):
            yield name
        cluster.wait_until_ready()
        wait_until(
            lambda: not any("deletionTimestamp" in each for _, each in _things(cluster, name)),
            "the end of what is being deleted",
        )
        left = [f"{kind} {each['name']}" for kind, each in _things(cluster, name)]
    finally:
        cluster.request("DELETE", f"/api/v1/namespaces/{name}")
    if left:
        pytest.fail("left behind: " + ", ".join(left))


# Any: metadata is JSON.
def _things(cluster: Cluster, namespace: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield kind and metadata of everything in a namespace that neither the cluster nor the agent put there."""
    for kind in ("pods", "configmaps", "secrets"):
        for item in cluster.request("GET", f"/api/v1/namespaces/{namespace}/{kind}")["items"]:
            metadata = item["metadata"]
            is_account = item.get("type") == "kubernetes.io/service-account-token"
            # Kubernetes publishes one certificate, OpenShift a second one.
            is_published = is_account or metadata["name"].endswith("-ca.crt")
            if not is_published and _AGENT not in metadata.get("labels", {}):
                yield kind, metadata


def _has_account(cluster: Cluster, namespace: str) -> bool:
    try:
        account = cluster.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
    except ApiError:
        return False
    return bool(account.get("secrets")) or cluster.has_version(24)  # later it has none


def sandboxes(cluster: Cluster, namespace: str) -> list[str]:
    """The sandboxes there, whatever state they are in; without those that their node still has to
    take leave of."""
    return [
        f"{pod['metadata']['name']} ({pod['status'].get('phase')})"
        for pod in cluster.pods(namespace, _SANDBOXES)
        if "deletionTimestamp" not in pod["metadata"]
    ]


@contextmanager
def new_claim(cluster: Cluster, namespace: str, folder: Path) -> Iterator[str]:
    """A PersistentVolumeClaim that is bound to a folder of this machine, by its name; pods that use it have to
    end before it does."""
    name, volumes = f"test-{secrets.token_hex(5)}", "/api/v1/persistentvolumes"
    common: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    volume = {"capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Retain", **common}
    volume["hostPath"] = {"path": str(folder), "type": "Directory"}
    volume["claimRef"] = {"namespace": namespace, "name": name}
    claim = {**common, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": name}

    def phase() -> str | None:
        found = cluster.request("GET", claims)["items"]
        return next((x["status"]["phase"] for x in found if x["metadata"]["name"] == name), None)

    cluster.request("POST", volumes, {"metadata": {"name": name}, "spec": volume})
    cluster.request("POST", claims, {"metadata": {"name": name}, "spec": claim})
    try:
        wait_until(lambda: phase() == "Bound", "a bound claim")
        yield name
    finally:
        try:
            cluster.request("DELETE", f"{claims}/{name}")
            wait_until(lambda: phase() is None, "the end of the claim's pods")
        finally:
            cluster.request("DELETE", f"{volumes}/{name}")
