"""A namespace of the cluster in which providers without arguments make their sandboxes."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from tests.components import lack, reason
from tests.kubernetes.cluster import SCRIPT, ApiError, Cluster, find_cluster, wait_until

IMAGE = "sandboxkit/python:3.11"
_AGENT = "sandboxkit.dev/agent"
_SANDBOXES = "sandboxkit.dev/sandbox=1"


def require_cluster() -> Cluster:
    """The cluster. Without it the test is skipped, or fails where CI requires Kubernetes."""
    cluster = find_cluster()
    if isinstance(cluster, str):
        lack(reason("cluster", "scripts/kube.sh up", cluster), "KUBERNETES")
    return cluster


def require_kubectl() -> None:
    """Skip the test without kubectl, or fail where CI requires Kubernetes."""
    command = [str(SCRIPT), "kubectl", "version", "--client"]
    if subprocess.run(command, capture_output=True).returncode:
        lack(reason("kubectl", "scripts/kube.sh build"), "KUBERNETES")


def variables(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Return the environment variables that make a provider without arguments use the namespace."""
    return {
        "KUBECONFIG": str(cluster.kubeconfig),
        "SANDBOXKIT_KUBERNETES_NAMESPACE": namespace,
        "SANDBOXKIT_KUBERNETES_IMAGE": IMAGE,
    }


@contextmanager
def new_namespace() -> Iterator[str]:
    """A namespace that providers use meanwhile; sandboxes that are left in it are a failure."""
    cluster = require_cluster()
    name = f"test-{secrets.token_hex(5)}"
    cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    try:
        wait_until(lambda: _usable(cluster, name), "the namespace's service account")
        with mock.patch.dict(os.environ, variables(cluster, name)):
            yield name
        left = sandboxes(cluster, name)
        if not left:
            wait_until(lambda: not cluster.pods(name, _SANDBOXES), "the end of what was deleted")
    finally:
        cluster.request("DELETE", f"/api/v1/namespaces/{name}")
    if left:
        pytest.fail("left behind: " + ", ".join(left))


def sandboxes(cluster: Cluster, namespace: str) -> list[str]:
    """The sandboxes there, whatever state they are in; without those that their node still has to
    take leave of."""
    return [
        f"{pod['metadata']['name']} ({pod['status'].get('phase')})"
        for pod in cluster.pods(namespace, _SANDBOXES)
        if "deletionTimestamp" not in pod["metadata"]
    ]


def remove_agents(cluster: Cluster, namespace: str) -> None:
    """Remove the parts of the agent, which providers leave for each other."""
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    for each in cluster.request("GET", path, query={"labelSelector": _AGENT})["items"]:
        cluster.request("DELETE", f"{path}/{each['metadata']['name']}")


def program(path: Path, *arguments: str) -> str:
    """Run a Python program and return its stdout; it must succeed without a warning."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path), *arguments],
        env={**os.environ, "SANDBOXKIT_PROVIDER": "kubernetes"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def _usable(cluster: Cluster, namespace: str) -> bool:
    try:
        cluster.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
    except ApiError:
        return False
    return True
