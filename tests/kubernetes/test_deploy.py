"""The kustomize base of deploy/ against the API server, and sandboxes in a namespace that has it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from sandboxkit.errors import CapacityError
from sandboxkit.providers.kubernetes import KubernetesProvider, _rights
from sandboxkit.providers.kubernetes._pod import MARKER
from sandboxkit.types import SandboxSpec
from tests.kubernetes.cluster import Cluster, kubectl
from tests.kubernetes.here import IMAGE, sandboxes
from tests.kubernetes.rooms import Box, room
from tests.kubernetes.test_manifests import documents

__all__ = ["room"]

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
DEPLOY = Path(__file__).parents[2] / "deploy"
KINDS = [
    "LimitRange",
    "Namespace",
    "NetworkPolicy",
    "ResourceQuota",
    "Role",
    "RoleBinding",
    "ServiceAccount",
]


# Any: manifests are JSON.
@pytest.fixture
def overlay(tmp_path: Path, room: str) -> Path:
    """An overlay with a test's namespace, as a user makes one."""
    folder = tmp_path / "overlay"
    folder.mkdir()
    base = folder / "base"
    base.mkdir()
    for file in DEPLOY.glob("*.yaml"):
        (base / file.name).write_text(re.sub(r"\bsandboxes$", room, file.read_text(), flags=re.M))
    return base


def applied(folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    """The objects by kind that the API server makes of a folder."""
    text = kubectl("apply", "-k", str(folder), "--validate=true", "--output", "json", *options)
    found = [item for each in documents(text) for item in each.get("items", [each])]
    assert sorted(each["kind"] for each in found) == KINDS
    return {each["kind"]: each for each in found}


def test_the_api_server_takes_the_base(cluster: Cluster, overlay: Path, room: str) -> None:
    found = applied(overlay, "--dry-run=server")
    assert found["Role"]["rules"] == _rights.role("sandboxkit", by_policy=True)["rules"]
    assert found["NetworkPolicy"]["spec"]["podSelector"] == {"matchLabels": {MARKER: "1"}}
    assert found["NetworkPolicy"]["spec"]["policyTypes"] == ["Ingress", "Egress"]
    names = {each["metadata"].get("namespace", room) for each in found.values()}
    assert names == {room}
    quotas = json.loads(kubectl("get", "resourcequotas", "-n", room, "--output", "json"))
    assert quotas["items"] == []


def test_every_object_is_in_the_namespace_of_the_base() -> None:
    built = kubectl("kustomize", str(DEPLOY))
    assert built.count("namespace: sandboxes") == 7
    assert built.count("kind: ") == len(KINDS) + 2


async def test_sandboxes_work_in_a_namespace_with_the_base(
    cluster: Cluster, overlay: Path, room: str
) -> None:
    applied(overlay)
    provider = KubernetesProvider()
    sandbox_id = await provider.create(SandboxSpec())
    assert await Box(provider, sandbox_id).run("echo", "up") == (0, "up\n", "")
    kubectl("patch", "resourcequota", room, "-n", room, "-p", '{"spec": {"hard": {"pods": "1"}}}')
    with pytest.raises(CapacityError, match="quota"):
        await provider.create(SandboxSpec())
    await provider.delete(sandbox_id)
    await provider.aclose()
    assert sandboxes(cluster, room) == []


def test_the_nodes_pull_the_image_of_an_overlay_and_keep_it(room: str, tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "prefetch", tmp_path / "base")
    name, _, tag = IMAGE.partition(":")
    (tmp_path / "kustomization.yaml").write_text(
        f"namespace: {room}\nresources: [base/daemonset.yaml]\n"
        f"images:\n- {{name: python, newName: {name}, newTag: '{tag}'}}\n"
    )
    restricted = "pod-security.kubernetes.io/enforce=restricted"
    kubectl("label", "namespace", room, restricted, "--overwrite")
    kubectl("apply", "-k", str(tmp_path))
    try:
        kubectl("rollout", "status", "daemonset/sandbox-image", "-n", room, "--timeout=60s")
        (pod,) = json.loads(kubectl("get", "pods", "-n", room, "--output", "json"))["items"]
        assert pod["spec"]["containers"][0]["image"] == IMAGE
        assert pod["status"]["containerStatuses"][0]["ready"]
    finally:
        kubectl("delete", "-k", str(tmp_path))
