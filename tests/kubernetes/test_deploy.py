"""The manifests of deploy/ and of the examples: the API server takes them, and what they start works."""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import sandboxkit
from sandboxkit import Operation, Session
from sandboxkit.errors import CapacityError, ConfigurationError
from sandboxkit.integrations.grpo import config
from sandboxkit.providers.kubernetes import _rights
from sandboxkit.providers.kubernetes._pod import MARKER
from sandboxkit.providers.service import ServiceProvider
from sandboxkit.testing.conformance._base import DEADLINE
from tests.docker.boxes import Pods
from tests.kubernetes.cluster import SCRIPT, Cluster, kubectl, wait_until
from tests.kubernetes.here import IMAGE

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
EXAMPLES = ROOT / "examples" / "kubernetes"
SERVICE = ROOT / "examples" / "serve" / "service.yaml"
LEVEL = "pod-security.kubernetes.io/enforce"
LIMITS = ["LimitRange", "Namespace", "NetworkPolicy", "ResourceQuota"]
KINDS = [*LIMITS, "Role", "RoleBinding", "ServiceAccount"]
FLOW = ["FlowSchema", "PriorityLevelConfiguration"]
OF_EXAMPLES = {
    "role.yaml": ["ServiceAccount", "Role", "RoleBinding"],
    "reward-job.yaml": ["Job"],
    "grpo-job.yaml": ["ConfigMap", "PersistentVolumeClaim", "Job"],
}
PACKAGES = Path(aiohttp.__file__).parents[1]


# Any, here and below: manifests are JSON.
def documents(text: str) -> Iterator[dict[str, Any]]:
    """The objects of several JSON documents that follow one another."""
    while text := text.lstrip():
        document, end = json.JSONDecoder().raw_decode(text)
        yield from document.get("items", [document])
        text = text[end:]


def created(file: Path, namespace: str, *options: str) -> list[dict[str, Any]]:
    """Create an example's objects and return them; with a dry run none is kept."""
    command = ["create", "--namespace", namespace, "--filename", str(file), "--validate=true"]
    return list(documents(kubectl(*command, "--output", "json", *options)))


@pytest.fixture
def overlay(tmp_path: Path, room: str) -> Path:
    """The base with a test's namespace."""
    for file in DEPLOY.glob("*.yaml"):
        text = re.sub(r"\bsandboxes$", room, file.read_text(), flags=re.M)
        (tmp_path / file.name).write_text(text)
    return tmp_path


def applied(folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    """The objects by kind that the API server makes of a folder."""
    text = kubectl("apply", "-k", str(folder), "--validate=true", "--output", "json", *options)
    found = list(documents(text))
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


async def test_sandboxes_work_beside_the_base(
    boxes: Pods, cluster: Cluster, overlay: Path, room: str
) -> None:
    applied(overlay)
    if cluster.has_version(25):  # which enforces the level of the base
        with pytest.raises(ConfigurationError, match=r"PodSecurity .*use no_network='policy'"):
            await boxes.start()
        # No plugin of this cluster enforces network policies.
        kubectl("label", "namespace", room, f"{LEVEL}=privileged", "--overwrite")
    box = await boxes.start()
    assert await box.run("echo", "up") == (0, "up\n", "")
    kubectl("patch", "resourcequota", room, "-n", room, "-p", '{"spec": {"hard": {"pods": "1"}}}')
    with pytest.raises(CapacityError, match="quota"):
        await boxes.start(box.provider)


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


def test_requests_of_the_service_account_have_their_own_level(cluster: Cluster, room: str) -> None:
    """The document's command is run on this server, which sorts a request by what it makes."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    (command,) = re.findall(r"^kubectl kustomize deploy/priority .*$", text, re.MULTILINE)
    if cluster.has_version(29):
        command = re.sub(r" sed '.*' \|", "", command)
    elif cluster.has_version(23):
        command = command.replace("v1beta1", "v1beta2")
    command = command.replace("kubectl ", f"{SCRIPT} kubectl ")

    renamed = f"sed -E 's/: sandbox(kit|es)$/: {room}/' | {SCRIPT} kubectl apply"
    command = command.replace(f"{SCRIPT} kubectl apply", renamed)
    argv = ["bash", "-o", "pipefail", "-c", f"{command} --validate=true --output json"]
    done = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True)
    found = {each["kind"]: each for each in documents(done.stdout)}
    assert sorted(found) == FLOW
    try:
        expected = [found[kind]["metadata"]["uid"] for kind in FLOW]
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


def test_the_server_takes_the_examples(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    files = list(EXAMPLES.glob("*.yaml"))
    found = {file.name: created(file, namespace, "--dry-run=server") for file in files}
    assert {name: [each["kind"] for each in made] for name, made in found.items()} == OF_EXAMPLES
    account, role, _ = found["role.yaml"]
    assert role["rules"] == _rights.role("sandboxkit")["rules"]
    for name in ("reward-job.yaml", "grpo-job.yaml"):
        pod = found[name][-1]["spec"]["template"]["spec"]
        assert pod["serviceAccountName"] == account["metadata"]["name"]
        assert {"name": "SANDBOXKIT_PROVIDER", "value": "kubernetes"} in pod["containers"][0]["env"]
    (tmp_path / "config.toml").write_text(found["grpo-job.yaml"][0]["data"]["config.toml"])
    assert config.read(tmp_path / "config.toml").grading.grader == "HostCompare"


def with_this_checkout(job: dict[str, Any]) -> dict[str, Any]:
    """The job or deployment with the tests' image, and this checkout and its packages where one's own image would be."""
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    folders = {ROOT, PACKAGES, Path(sandboxkit.__file__).resolve().parents[1]}
    mounted: list[dict[str, Any]] = [
        {"name": f"host-{number}", "hostPath": {"path": str(folder)}}
        for number, folder in enumerate(folders)
    ]
    pod["volumes"] = [*pod.get("volumes", []), *mounted]
    container["volumeMounts"] = container.get("volumeMounts", []) + [
        {"name": volume["name"], "mountPath": volume["hostPath"]["path"], "readOnly": True}
        for volume in mounted
    ]
    container |= {"image": IMAGE, "workingDir": str(ROOT), "resources": {}}
    paths = ":".join(str(folder) for folder in folders)
    given = {each["name"]: each["value"] for each in container["env"]}
    given |= {"SANDBOXKIT_KUBERNETES_IMAGE": IMAGE, "PYTHONPATH": paths}
    container["env"] = [{"name": name, "value": value} for name, value in given.items()]
    return job


def test_the_reward_job_scores_in_pods_beside_its_own(cluster: Cluster, namespace: str) -> None:
    created(EXAMPLES / "role.yaml", namespace)
    (job,) = created(EXAMPLES / "reward-job.yaml", namespace, "--dry-run=client")
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    cluster.request("POST", jobs, with_this_checkout(job))

    def finished() -> bool:
        conditions = cluster.request("GET", f"{jobs}/reward")["status"].get("conditions", [])
        return any(each["type"] in {"Complete", "Failed"} for each in conditions)

    try:
        wait_until(finished, "the job's end", seconds=120)
        output = kubectl("logs", "--namespace", namespace, "job/reward")
        assert output.splitlines() == [
            "insertion sort: 1.0",
            "banned builtin: 0.0",
            "ends the process: 0.0",
            "equals everything: 0.0",
            "no answer: 0.0",
        ]
        wait_until(lambda: not cluster.pods(namespace, "job-name!=reward"), "the sandboxes' end")
    finally:
        # The pods first: the job is gone when they are.
        cluster.request("DELETE", f"{jobs}/reward", {"propagationPolicy": "Foreground"})
        wait_until(lambda: not cluster.request("GET", jobs)["items"], "the job's end")


_PATHS = {
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Service": "/api/v1/namespaces/{}/services",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
}


def test_replicas_lend_pods(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")  # no proxy knows the way to an address of the cluster
    monkeypatch.setenv("no_proxy", "*")
    created(EXAMPLES / "role.yaml", namespace)
    for manifest in created(SERVICE, namespace, "--dry-run=client"):
        if (kind := manifest["kind"]) == "Deployment":
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
        provider = ServiceProvider(url, token="replace-this-token")
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
