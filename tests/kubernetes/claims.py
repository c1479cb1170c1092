"""A PersistentVolumeClaim of a test's own, whose volume is a folder of this machine."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster import ApiError, Cluster, wait_until

_VOLUMES = "/api/v1/persistentvolumes"


@contextmanager
def new_claim(cluster: Cluster, namespace: str, folder: Path) -> Iterator[str]:
    """A claim that is bound to a folder, by its name; pods that use it have to end before it does."""
    name = f"test-{secrets.token_hex(5)}"
    common: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    volume = {
        **common,
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": str(folder), "type": "Directory"},
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": namespace, "name": name},
    }
    claim = {**common, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": name}
    cluster.request("POST", _VOLUMES, {"metadata": {"name": name}, "spec": volume})
    cluster.request("POST", claims, {"metadata": {"name": name}, "spec": claim})
    try:
        wait_until(
            lambda: cluster.request("GET", f"{claims}/{name}")["status"]["phase"] == "Bound",
            "a bound claim",
        )
        yield name
    finally:
        try:
            cluster.request("DELETE", f"{claims}/{name}")
            wait_until(lambda: _is_gone(cluster, f"{claims}/{name}"), "the end of the claim's pods")
        finally:
            cluster.request("DELETE", f"{_VOLUMES}/{name}")


def _is_gone(cluster: Cluster, path: str) -> bool:
    try:
        cluster.request("GET", path)
    except ApiError as error:
        return error.reason == "NotFound"
    return False
