"""The service's manifests: the API server accepts them, and a replica lends pods."""

from typing import Any

import pytest

from sandboxkit import Operation, Session
from sandboxkit.providers.service import ServiceProvider
from sandboxkit.testing.conformance._base import DEADLINE
from tests.kubernetes.cluster import Cluster, kubectl, wait_until
from tests.kubernetes.test_in_cluster import EXAMPLES, ROOT, with_this_checkout
from tests.kubernetes.test_manifests import documents

MANIFEST = ROOT / "examples" / "serve" / "service.yaml"
SECRET = "replace-this-token"


def test_replicas_lend_pods_to_a_session(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")  # no proxy knows the way to an address of the cluster
    monkeypatch.setenv("no_proxy", "*")
    kubectl("create", "--namespace", namespace, "--filename", str(EXAMPLES / "role.yaml"))
    for kind, manifest in _manifests(namespace).items():
        if kind == "Deployment":
            manifest = with_this_checkout(manifest)
        cluster.request("POST", _PATHS[kind].format(namespace), manifest)
    deployment = f"{_PATHS['Deployment'].format(namespace)}/sandboxkit-serve"
    try:
        wait_until(
            lambda: cluster.request("GET", deployment)["status"].get("readyReplicas") == 2,
            "both replicas are ready",
            seconds=180,
        )
        # The tests' cluster has no kube-proxy, so a Service leads nowhere: this is what it would lead to.
        replica = cluster.pods(namespace, "app=sandboxkit-serve")[0]
        url = f"http://{replica['status']['podIP']}:8080"
        provider = ServiceProvider(url, token=SECRET)
        with Session(provider) as session:
            sandboxes = [session.sandbox() for _ in range(3)]
            for number, sandbox in enumerate(sandboxes):
                sandbox.write_file("/workspace/file", str(number)).result(DEADLINE)
            read = [sandbox.exec(["cat", "file"]).result(DEADLINE).stdout for sandbox in sandboxes]
            assert read == ["0", "1", "2"]
            assert len(cluster.pods(namespace, "app!=sandboxkit-serve")) == 3
        Operation(provider.aclose()).result(DEADLINE)
        wait_until(lambda: not cluster.pods(namespace, "app!=sandboxkit-serve"), "the pods' end")
    finally:
        for kind, name in (("Service", "sandboxkit"), ("Secret", "sandboxkit-tokens")):
            cluster.request("DELETE", f"{_PATHS[kind].format(namespace)}/{name}")
        cluster.request("DELETE", deployment, {"propagationPolicy": "Foreground"})
        wait_until(lambda: not cluster.pods(namespace), "the replicas' end", seconds=180)


_PATHS = {
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Service": "/api/v1/namespaces/{}/services",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
}


def _manifests(namespace: str) -> dict[str, Any]:  # Any: JSON
    """The objects of the example by their kinds."""
    text = kubectl(
        *("create", "--namespace", namespace, "--filename", str(MANIFEST)),
        *("--dry-run=client", "--output", "json"),
    )
    return {each["kind"]: each for each in documents(text)}
