"""The minimal Role: everything works with it, nothing of it can be left out. Doctor names what is missing."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml  # type: ignore[import-untyped]  # ships no types

from sandboxkit.errors import AuthenticationError
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.providers.kubernetes._rights import ALWAYS, POLICY, Right, commands, role
from sandboxkit.types import Diagnosis, SandboxSpec
from tests.docker.boxes import Box, Pods
from tests.kubernetes.cluster import Cluster, kubectl

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "kubernetes.md"
# Any: a manifest is JSON.
Give = Callable[[dict[str, Any]], None]


@pytest.fixture
def give(cluster: Cluster, user: Cluster, room: str) -> Give:
    """Gives the user "user", who has no other rights, a Role instead of what was given before."""
    review: dict[str, Any] = {"spec": {"resourceAttributes": {"verb": "list", "resource": "pods"}}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert not user.request("POST", path, review)["status"]["allowed"]
    kubectl("create", "rolebinding", "sandboxes", "-n", room, "--role=sandboxes", "--user=user")
    roles, given = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{room}/roles", set[str]()

    def give(manifest: dict[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        if name in given:
            cluster.request("PUT", f"{roles}/{name}", manifest)
        else:
            cluster.request("POST", roles, manifest)
            given.add(name)

    return give


async def until_allowed(provider: KubernetesProvider, *, available: bool) -> str:
    """Wait until `doctor` finds the provider available, or not available, and return its text."""
    with anyio.fail_after(30):
        while (found := await provider.diagnose()).available is not available:
            await anyio.sleep(0.1)
    return found.detail


async def test_all_works_with_the_minimal_role(boxes: Pods, user: Cluster, give: Give) -> None:
    give(role("sandboxes"))
    provider, other = (boxes.provider(kubeconfig=str(user.kubeconfig)) for _ in range(2))
    await until_allowed(provider, available=True)
    box = await boxes.start(provider, tags={"a": "1"})
    assert await box.run("echo", "up") == (0, "up\n", "")
    await box.inner.renew(600)
    assert [info.id async for info in provider.list({"a": "1"})] == [box.id]
    assert await Box(other.box(box.id)).run("echo", "up") == (0, "up\n", "")


async def test_doctors_commands_give_each_right_that_is_missing(
    boxes: Pods, user: Cluster, give: Give
) -> None:
    provider = boxes.provider(kubeconfig=str(user.kubeconfig))
    with pytest.raises(AuthenticationError, match="configmaps"):  # no fault of a program
        await provider.create(SandboxSpec())
    found = await provider.diagnose()
    assert not found.available
    assert "docs/kubernetes.md" in found.remedy
    lines = [line for line in found.remedy.splitlines() if line.startswith("kubectl ")]
    assert len(lines) == 2 * len(ALWAYS)
    for right in ALWAYS:
        for verb in right.verbs:
            assert f"{verb} {right.resource}" in found.detail
    for at, right in enumerate(ALWAYS):
        for verb in right.verbs:
            give(role("sandboxes"))
            await until_allowed(provider, available=True)
            less = role("sandboxes")
            less["rules"][at]["verbs"].remove(verb)
            if not less["rules"][at]["verbs"]:
                del less["rules"][at]
            give(less)
            detail = await until_allowed(provider, available=False)
            assert detail.endswith(f"these credentials may not: {verb} {right.resource}"), detail
    give({**role("sandboxes"), "rules": []})
    await until_allowed(provider, available=False)
    for line in lines:
        kubectl(*shlex.split(line.replace("USER", "user"))[1:])
    await until_allowed(provider, available=True)


@pytest.mark.parametrize("right", [*ALWAYS, POLICY], ids=lambda right: right.resource)
def test_the_command_for_one_right_gives_that_right_only(right: Right, room: str) -> None:
    line = commands([f"{right.verbs[0]} {right.resource}"], room).splitlines()[0]
    made = json.loads(kubectl(*shlex.split(line)[1:], "--dry-run=server", "--output=json"))
    (rule,) = made["rules"]
    assert rule["apiGroups"] == [right.group]
    assert (rule["resources"], rule["verbs"]) == ([right.resource], [right.verbs[0]])


async def test_policies_need_one_more_right(boxes: Pods, user: Cluster, give: Give) -> None:
    give(role("sandboxes"))
    provider = boxes.provider(kubeconfig=str(user.kubeconfig), no_network="policy")
    with anyio.fail_after(30):
        while "pods" in (detail := (await provider.diagnose()).detail):
            await anyio.sleep(0.1)
    assert detail.endswith("these credentials may not: create networkpolicies")


async def test_doctor_names_what_a_pod_is_refused(boxes: Pods, cluster: Cluster, room: str) -> None:
    async def found(**options: str) -> Diagnosis:
        return await boxes.provider(**options).diagnose()

    path = "/apis/node.k8s.io/v1/runtimeclasses"
    wrong = await found(runtime_class=room)
    assert not wrong.available
    assert wrong.detail.endswith("the pod of a sandbox is refused")
    assert f'RuntimeClass "{room}" not found' in wrong.remedy
    assert "kubectl get runtimeclass" in wrong.remedy
    cluster.request("POST", path, {"metadata": {"name": room}, "handler": "runsc"})
    try:
        with anyio.fail_after(30):
            while not (right := await found(runtime_class=room)).available:
                await anyio.sleep(0.1)
        assert room in right.isolation
    finally:
        cluster.request("DELETE", f"{path}/{room}")
    assert "kubectl get priorityclass" in (await found(priority_class=room)).remedy
    quota = f"/api/v1/namespaces/{room}/resourcequotas"
    cluster.request("POST", quota, {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}})
    with anyio.fail_after(30):
        while (full := await found()).available or "exceeded quota: q" not in full.remedy:
            await anyio.sleep(0.1)
    assert cluster.pods(room) == []


@pytest.mark.parametrize("title", ["role", "role with claims"])
def test_the_document_has_the_role(title: str) -> None:
    shown = re.findall(rf"<!-- {title} -->\n```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    expected = role("sandboxes", claims="claims" in title)
    assert [yaml.safe_load(each) for each in shown] == [expected]
