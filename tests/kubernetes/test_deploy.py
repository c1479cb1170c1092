"""The kustomize base of deploy/ against the API server, and sandboxes in a namespace that has it."""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from sandboxkit.errors import CapacityError, ConfigurationError
from sandboxkit.providers.kubernetes import KubernetesProvider, _rights
from sandboxkit.providers.kubernetes._pod import MARKER
from sandboxkit.types import SandboxSpec
from tests.kubernetes.cluster import SCRIPT, Cluster, kubectl, wait_until
from tests.kubernetes.here import IMAGE, Box, sandboxes
from tests.kubernetes.test_manifests import documents

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
LEVEL = "pod-security.kubernetes.io/enforce"
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
    assert kubectl("kustomize", str(DEPLOY)).count("namespace: sandboxes") == len(KINDS)
    names = {each["metadata"].get("namespace", room) for each in found.values()}
    assert names == {room}
    quotas = json.loads(kubectl("get", "resourcequotas", "-n", room, "--output", "json"))
    assert quotas["items"] == []


async def test_sandboxes_work_in_a_namespace_with_the_base(
    cluster: Cluster, overlay: Path, room: str
) -> None:
    applied(overlay)
    provider = KubernetesProvider()
    if cluster.has_version(25):  # which enforces the level of the base
        with pytest.raises(ConfigurationError, match=r"PodSecurity .*use no_network='policy'"):
            await provider.create(SandboxSpec())
        # No plugin of this cluster enforces network policies.
        kubectl("label", "namespace", room, f"{LEVEL}=privileged", "--overwrite")
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
    kubectl("label", "namespace", room, f"{LEVEL}=restricted", "--overwrite")
    kubectl("apply", "-k", str(tmp_path))
    try:
        kubectl("rollout", "status", "daemonset/sandbox-image", "-n", room, "--timeout=60s")
        (pod,) = json.loads(kubectl("get", "pods", "-n", room, "--output", "json"))["items"]
        assert pod["spec"]["containers"][0]["image"] == IMAGE
        assert pod["status"]["containerStatuses"][0]["ready"]
    finally:
        kubectl("delete", "-k", str(tmp_path))


def test_requests_of_the_service_account_have_a_priority_level_of_their_own(
    cluster: Cluster, room: str
) -> None:
    """The document's command is run on this server, which sorts a request by what it makes."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    (command,) = re.findall(r"^kubectl kustomize deploy/priority .*$", text, re.MULTILINE)
    if cluster.has_version(29):
        command = re.sub(r" sed '.*' \|", "", command)
    elif cluster.has_version(23):
        command = command.replace("v1beta1", "v1beta2")
    command = command.replace("kubectl ", f"{SCRIPT} kubectl ")

    def made(command: str) -> dict[str, dict[str, Any]]:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"{command} --validate=true --output json"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        found = [item for each in documents(done.stdout) for item in each.get("items", [each])]
        return {each["kind"]: each for each in found}

    assert sorted(made(f"{command} --dry-run=server")) == [
        "FlowSchema",
        "PriorityLevelConfiguration",
    ]
    renamed = f"sed -E 's/: sandbox(kit|es)$/: {room}/' | {SCRIPT} kubectl apply"
    found = made(command.replace(f"{SCRIPT} kubectl apply", renamed))
    try:
        expected = [
            found[kind]["metadata"]["uid"] for kind in ("FlowSchema", "PriorityLevelConfiguration")
        ]
        account = f"system:serviceaccount:{room}:{room}"
        wait_until(lambda: _sorted_by(cluster, account) == expected, "requests of the new level")
        assert _sorted_by(cluster, f"{account}-other") != expected
    finally:
        kubectl("delete", "flowschema,prioritylevelconfiguration", room)


def _sorted_by(cluster: Cluster, user: str) -> list[str | None]:
    """Return the uids of the FlowSchema and the priority level of a user's request, as the server names them."""
    request = urllib.request.Request(f"{cluster.server}/api/v1/pods")
    request.add_header("Authorization", f"Bearer {cluster.token}")
    request.add_header("Impersonate-User", user)
    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        urllib.request.urlopen(request, timeout=30, context=cluster.tls)
    with refused.value as answer:
        headers = answer.headers
    return [headers[f"X-Kubernetes-PF-{each}-UID"] for each in ("FlowSchema", "PriorityLevel")]
