"""A real cluster (scripts/kube.sh up), or no test at all."""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.cluster import STATE, ApiError, Cluster, view, wait_until
from tests.kubernetes.here import require_cluster


@pytest.fixture(scope="session")
def found_cluster() -> Cluster:
    """The cluster. Without it the test is skipped, or fails where CI requires Kubernetes."""
    return require_cluster()


@pytest.fixture
def cluster(found_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster, `KUBECONFIG` pointing to it, which nobody disturbs during the test."""
    monkeypatch.setenv("KUBECONFIG", str(found_cluster.kubeconfig))
    with found_cluster.held():
        yield found_cluster


@pytest.fixture
def own_cluster(found_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster for one test alone, which may stop, kill and freeze its programs.

    Ask for it instead of `cluster`, never with it: the two would wait for each other.
    """
    monkeypatch.setenv("KUBECONFIG", str(found_cluster.kubeconfig))
    if not found_cluster.is_of_script:
        pytest.skip("only the cluster of scripts/kube.sh can be disturbed")
    with found_cluster.held(alone=True):
        yield found_cluster
        found_cluster.wait_until_ready()


@pytest.fixture
def user(found_cluster: Cluster) -> Cluster:
    """The cluster as seen by a user who may do nothing."""
    if not found_cluster.is_of_script:
        pytest.skip("only scripts/kube.sh makes a user without rights")
    return view(STATE / "kubeconfig-user")


@pytest.fixture
def namespace(found_cluster: Cluster) -> Iterator[str]:
    """A namespace of this test's own; what is in it afterwards is removed and is a failure."""
    name = f"test-{secrets.token_hex(5)}"
    found_cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    try:
        wait_until(lambda: _has_account(found_cluster, name), "the default service account")
        yield name
        found_cluster.wait_until_ready()
        wait_until(
            lambda: not any(_is_leaving(item) for _, item in _things(found_cluster, name)),
            "the end of what is being deleted",
        )
        left = [f"{kind} {item['metadata']['name']}" for kind, item in _things(found_cluster, name)]
    finally:
        found_cluster.request("DELETE", f"/api/v1/namespaces/{name}")
    if left:
        pytest.fail("left behind: " + ", ".join(left))


def _has_account(cluster: Cluster, namespace: str) -> bool:
    try:
        account = cluster.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
    except ApiError:
        return False
    return bool(account.get("secrets")) or cluster.has_version(24)  # later it has none


def _things(cluster: Cluster, namespace: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield kind and object for everything in a namespace that the cluster itself did not put there."""
    for kind in ("pods", "configmaps", "secrets"):
        for item in cluster.request("GET", f"/api/v1/namespaces/{namespace}/{kind}")["items"]:
            account = item.get("type") == "kubernetes.io/service-account-token"
            # Kubernetes publishes one certificate, OpenShift a second one.
            if not account and not item["metadata"]["name"].endswith("-ca.crt"):
                yield kind, item


def _is_leaving(item: dict[str, Any]) -> bool:
    return "deletionTimestamp" in item["metadata"]
