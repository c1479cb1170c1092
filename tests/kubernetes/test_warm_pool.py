"""Sandboxes that are claims on a warm pool of agent-sandbox, with a small controller of the tests."""

import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import anyio
import anyio.to_thread
import pytest

from sandboxkit.errors import ConfigurationError, SandboxNotFoundError, SandboxTerminatedError
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.providers.kubernetes._options import ClusterOptions
from sandboxkit.providers.kubernetes._rights import CLAIMING, role
from sandboxkit.providers.kubernetes._warm_pool import WarmPoolProvider
from sandboxkit.types import SandboxSpec, SandboxState
from tests.docker.boxes import Box, Pods
from tests.kubernetes import agent_sandbox
from tests.kubernetes.agent_sandbox import POOL, Controller, warm_pool
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.here import new_namespace, require_cluster
from tests.kubernetes.test_rights import Give, give, until_allowed

__all__ = ["give"]

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def claimed() -> Iterator[tuple[str, Controller]]:
    """A namespace in which providers without arguments claim their sandboxes, and a pool of one pod there."""
    with (
        require_cluster().held(),  # nobody disturbs it while the controller asks the API server
        new_namespace() as namespace,
        mock.patch.dict(os.environ, {"SANDBOXKIT_KUBERNETES_CLAIMS": POOL}),
        warm_pool(require_cluster(), namespace, replicas=1) as controller,
    ):
        yield namespace, controller


@pytest.fixture
def pool(cluster: Cluster, claimed: tuple[str, Controller]) -> Iterator[Controller]:
    """The pool, which is full when the test begins; at its end no claim may be left."""
    room, controller = claimed
    controller.wait_until(lambda: controller.ready == 1, "a full pool")
    yield controller
    assert names(cluster, room, "SandboxClaim") == []


@pytest.fixture
def room(claimed: tuple[str, Controller]) -> str:
    return claimed[0]


def names(cluster: Cluster, namespace: str, kind: str) -> list[str]:
    """Return the names of the objects of a kind of agent-sandbox."""
    items = cluster.request("GET", agent_sandbox.path(namespace, kind))["items"]
    return [each["metadata"]["name"] for each in items]


async def test_a_claim_gets_a_pod_that_is_already_there_and_gives_it_up(
    pool: Controller, boxes: Pods, cluster: Cluster, room: str
) -> None:
    (warm,) = (each for each in cluster.pods(room) if "deletionTimestamp" not in each["metadata"])
    provider, other = boxes.provider(), boxes.provider()
    assert isinstance(provider, WarmPoolProvider)
    env, workdir = {"A": "1"}, "/tmp/work"
    box = await boxes.start(provider, tags={"run": "42"}, env=env, workdir=workdir, lifetime=600)
    assert dict(pool.given)[box.id] == warm["metadata"]["name"]
    assert await box.run("sh", "-c", "echo $A; pwd") == (0, "1\n/tmp/work\n", "")

    (info,) = [each async for each in other.list({"run": "42"})]
    assert (info.id, info.state.value, info.tags) == (box.id, "running", {"run": "42"})
    assert [each.id async for each in other.list({"run": "43"})] == []
    assert await Box(other.box(box.id)).run("pwd") == (0, "/tmp/work\n", "")
    await other.box(box.id).renew(6000)
    before, after = info.expires_at, (await box.inner.info()).expires_at
    assert before is not None
    assert after is not None
    assert 5390 < (after - before).total_seconds() < 5460

    await box.inner.delete()
    with pytest.raises(SandboxNotFoundError):
        await box.inner.info()
    assert names(cluster, room, "SandboxClaim") == []
    # The cluster's garbage collector ends what the claim owned, and the controller makes another one.
    old = warm["metadata"]["name"]
    await anyio.to_thread.run_sync(
        pool.wait_until,
        lambda: (
            pool.ready == 1
            and old not in names(cluster, room, "Sandbox")
            and old not in [each["metadata"]["name"] for each in cluster.pods(room)]
        ),
        "the end of the pod, and another one",
    )


async def test_a_claim_ends_when_its_owner_or_its_lifetime_does(
    pool: Controller, boxes: Pods, cluster: Cluster, room: str
) -> None:
    box = await boxes.start(boxes.provider(lease=8))
    with anyio.fail_after(90):
        # Longer than the lease: it is renewed.
        assert (await box.run("sleep", "12"))[0] == 0
        await box.provider.aclose()  # without a deletion, as if the process had ended
        while names(cluster, room, "SandboxClaim"):
            await anyio.sleep(0.2)

    box = await boxes.start(lifetime=2)
    with pool.paused(), anyio.fail_after(30):  # the agent itself ends the commands
        for _ in range(2):  # a command, and a call of an agent that has ended
            with pytest.raises(SandboxTerminatedError, match="its lifetime is over"):
                await box.run("sleep", "60")
        while (await box.provider.box(box.id).info()).state is not SandboxState.STOPPED:
            await anyio.sleep(0.1)


async def test_a_lost_pod_ends_its_sandbox(
    pool: Controller, boxes: Pods, cluster: Cluster, room: str
) -> None:
    box = await boxes.start()
    pod = dict(pool.given)[box.id]
    cluster.request("DELETE", f"/api/v1/namespaces/{room}/pods/{pod}", {"gracePeriodSeconds": 0})
    with pytest.raises(SandboxTerminatedError, match=r"deleted|gone|restarted"):
        await box.run("sleep", "60")


@pytest.mark.usefixtures("pool")
async def test_what_a_template_lacks_is_refused(
    boxes: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = boxes.provider()
    # Any: one type per option.
    specs: dict[str, Any] = {"image": "a", "memory_mb": 64, "cpus": 1.0, "mounts": {"/a": "vol:a"}}
    for option, value in specs.items():
        with pytest.raises(ConfigurationError, match=f"{option}=.*template"):
            provider.check(SandboxSpec(**{option: value}))
    with pytest.raises(ConfigurationError, match="security='restricted' with claims='pool'"):
        KubernetesProvider(security="restricted")
    assert ClusterOptions(claims="pool").lease == 60.0
    with pytest.raises(ConfigurationError, match=r"network='internet'.*network='none'"):
        await provider.create(SandboxSpec(network="internet"))
    with pytest.raises(ConfigurationError, match="claims='absent': WarmPoolNotFound"):
        await boxes.provider(claims="absent").create(SandboxSpec())
    monkeypatch.setattr(WarmPoolProvider, "_resource", ("absentclaims", "/apis/absent.example/v1"))
    with pytest.raises(ConfigurationError, match="install the CRDs and the controller"):
        await boxes.provider().create(SandboxSpec())


@pytest.mark.usefixtures("pool")
async def test_a_user_that_the_template_forbids_is_refused_with_a_remedy(boxes: Pods) -> None:
    """The template has dropped all capabilities, so root cannot switch users."""
    box = await boxes.start()
    assert await box.run("id", "-un", user="root") == (0, "root\n", "")
    with pytest.raises(ConfigurationError, match=r"user .*claims='pool'.*SETUID"):
        await box.run("true", user="nobody")
    await box.inner.delete()
    with pytest.raises(ConfigurationError, match=r"user .*claims='pool'.*SETUID"):
        await boxes.start(box.provider, user="nobody")


@pytest.mark.usefixtures("pool")
async def test_claims_need_their_role_alone(boxes: Pods, user: Cluster, give: Give) -> None:
    provider = boxes.provider(kubeconfig=str(user.kubeconfig))
    found = await provider.diagnose()
    for right in CLAIMING:
        for verb in right.verbs:
            assert f"{verb} {right.resource}" in found.detail
    give(role("sandboxes", claims=True))
    detail = await until_allowed(provider, available=True)
    assert detail.endswith("claims on the warm pool 'pool'")
    box = await boxes.start(provider)
    assert (await box.run("true"))[0] == 0
    assert [each.id async for each in provider.list({})] == [box.id]
