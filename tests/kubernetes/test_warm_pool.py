"""Sandboxes that are claims on a warm pool of agent-sandbox, with a small controller of the tests."""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from subprocess import PIPE, Popen
from unittest import mock

import anyio
import anyio.to_thread
import pytest
import yaml  # type: ignore[import-untyped]  # ships no types

from sandboxkit.errors import ConfigurationError, SandboxNotFoundError, SandboxTerminatedError
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.providers.kubernetes._options import ClusterOptions
from sandboxkit.providers.kubernetes._rights import CLAIMING, role
from sandboxkit.providers.kubernetes._warm_pool import WarmPoolProvider
from sandboxkit.types import SandboxSpec, SandboxState
from tests.kubernetes import agent_sandbox
from tests.kubernetes.agent_sandbox import POOL, Controller, warm_pool
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.here import PROGRAMS, Box, new_namespace, require_cluster, variables
from tests.kubernetes.test_rights import DOCUMENT, Grants, grants, until_allowed

__all__ = ["grants"]

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
    cluster: Cluster, room: str, pool: Controller
) -> None:
    (warm,) = (each for each in cluster.pods(room) if "deletionTimestamp" not in each["metadata"])
    provider = KubernetesProvider()
    assert isinstance(provider, WarmPoolProvider)
    sandbox_id = await provider.create(
        SandboxSpec(tags={"run": "42"}, env={"A": "1"}, workdir="/tmp/work", lifetime=600)
    )
    assert dict(pool.given)[sandbox_id] == warm["metadata"]["name"]
    box = Box(provider, sandbox_id)
    assert await box.run("sh", "-c", "echo $A; pwd") == (0, "1\n/tmp/work\n", "")

    other = KubernetesProvider()
    (info,) = [each async for each in other.list({"run": "42"})]
    assert (info.id, info.state.value, info.tags) == (sandbox_id, "running", {"run": "42"})
    assert [each.id async for each in other.list({"run": "43"})] == []
    assert await Box(other, sandbox_id).run("pwd") == (0, "/tmp/work\n", "")
    await other.renew(sandbox_id, 6000)
    before, after = info.expires_at, (await provider.get(sandbox_id)).expires_at
    assert before is not None
    assert after is not None
    assert 5390 < (after - before).total_seconds() < 5460
    await other.aclose()

    await provider.delete(sandbox_id)
    with pytest.raises(SandboxNotFoundError):
        await provider.get(sandbox_id)
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
    await provider.aclose()


async def test_a_claim_ends_when_its_owner_or_its_lifetime_does(
    cluster: Cluster, room: str, pool: Controller
) -> None:
    provider = KubernetesProvider(lease=8)
    sandbox_id = await provider.create(SandboxSpec())
    with anyio.fail_after(90):
        # Longer than the lease: it is renewed.
        assert (await Box(provider, sandbox_id).run("sleep", "12"))[0] == 0
        await provider.aclose()  # without a deletion, as if the process had ended
        while names(cluster, room, "SandboxClaim"):
            await anyio.sleep(0.2)

    provider = KubernetesProvider()
    sandbox_id = await provider.create(SandboxSpec(lifetime=2))
    with pool.paused(), anyio.fail_after(30):  # the agent itself ends the commands
        for _ in range(2):  # a command, and a call of an agent that has ended
            with pytest.raises(SandboxTerminatedError, match="its lifetime is over"):
                await Box(provider, sandbox_id).run("sleep", "60")
        while (await provider.get(sandbox_id)).state is not SandboxState.STOPPED:
            await anyio.sleep(0.1)
    await provider.delete(sandbox_id)
    await provider.aclose()


async def test_a_pod_that_is_lost_ends_its_sandbox(
    cluster: Cluster, room: str, pool: Controller
) -> None:
    provider = KubernetesProvider()
    sandbox_id = await provider.create(SandboxSpec())
    pod = dict(pool.given)[sandbox_id]
    cluster.request("DELETE", f"/api/v1/namespaces/{room}/pods/{pod}", {"gracePeriodSeconds": 0})
    with pytest.raises(SandboxTerminatedError, match=r"deleted|gone|restarted"):
        await Box(provider, sandbox_id).run("sleep", "60")
    await provider.delete(sandbox_id)
    await provider.aclose()


async def test_what_a_template_decides_is_refused_beside_claims(
    cluster: Cluster, room: str, pool: Controller
) -> None:
    provider = KubernetesProvider()
    for option, spec in {
        "image": SandboxSpec(image="a"),
        "memory_mb": SandboxSpec(memory_mb=64),
        "cpus": SandboxSpec(cpus=1.0),
        "mounts": SandboxSpec(mounts={"/a": "vol:a"}),
    }.items():
        with pytest.raises(ConfigurationError, match=f"{option}=.*template"):
            provider.check(spec)
    with pytest.raises(ConfigurationError, match="security='restricted' with claims='pool'"):
        KubernetesProvider(security="restricted")
    assert ClusterOptions(claims="pool").lease == 60.0
    with pytest.raises(ConfigurationError, match=r"network='internet'.*network='none'"):
        await provider.create(SandboxSpec(network="internet"))
    missing = KubernetesProvider(claims="absent")
    with pytest.raises(ConfigurationError, match="claims='absent': WarmPoolNotFound"):
        await missing.create(SandboxSpec())
    await missing.aclose()
    await provider.aclose()


async def test_a_user_that_the_template_forbids_is_refused_with_a_remedy(
    room: str, pool: Controller
) -> None:
    """The template has dropped all capabilities, so root cannot switch users."""
    provider = KubernetesProvider()
    sandbox_id = await provider.create(SandboxSpec())
    box = Box(provider, sandbox_id)
    assert await box.run("id", "-un", user="root") == (0, "root\n", "")
    with pytest.raises(ConfigurationError, match=r"user .*claims='pool'.*SETUID"):
        await box.run("true", user="nobody")
    await provider.delete(sandbox_id)
    with pytest.raises(ConfigurationError, match=r"user .*claims='pool'.*SETUID"):
        await provider.create(SandboxSpec(user="nobody"))
    await provider.aclose()


async def test_a_cluster_without_the_crds_is_named(
    pool: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WarmPoolProvider, "_resource", ("absentclaims", "/apis/absent.example/v1"))
    provider = KubernetesProvider(claims="pool")
    with pytest.raises(ConfigurationError, match="install the CRDs and the controller"):
        await provider.create(SandboxSpec())
    await provider.aclose()


async def test_claims_need_no_other_rights_than_their_role(
    user: Cluster, room: str, grants: Grants, pool: Controller
) -> None:
    provider = KubernetesProvider(kubeconfig=str(user.kubeconfig))
    found = await provider.diagnose()
    for right in CLAIMING:
        for verb in right.verbs:
            assert f"{verb} {right.resource}" in found.detail
    grants.give(role("sandboxes", claims=True))
    detail = await until_allowed(provider, available=True)
    assert detail.endswith("claims on the warm pool 'pool'")
    sandbox_id = await provider.create(SandboxSpec())
    assert (await Box(provider, sandbox_id).run("true"))[0] == 0
    assert [each.id async for each in provider.list({})] == [sandbox_id]
    await provider.delete(sandbox_id)
    await provider.aclose()


def test_the_document_has_the_role_with_claims() -> None:
    shown = re.findall(
        r"<!-- role with claims -->\n```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL
    )
    assert [yaml.safe_load(each) for each in shown] == [role("sandboxes", claims=True)]


def test_40_claims_of_4_processes_get_40_different_pods(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node runs these pods, into which no agent can be brought. Everything else is real."""
    for name, value in {
        **variables(cluster, namespace),
        "SANDBOXKIT_KUBERNETES_CLAIMS": POOL,
    }.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-W", "error", "-c", PROGRAMS["warm_pool"]["claimer"], "10"]
    with warm_pool(cluster, namespace, replicas=8, light=True) as controller:
        running = [Popen(command, stdin=PIPE, stdout=PIPE, text=True) for _ in range(4)]
        pods: list[str] = []
        for each in running:
            assert each.stdout is not None
            pods += each.stdout.readline().split()
        assert len(pods) == len(set(pods)) == len(names(cluster, namespace, "SandboxClaim")) == 40
        given = dict(controller.given)
        assert set(given.values()) <= set(pods)
        assert max(Counter(given.values()).values()) == 1
        for each in running:
            each.communicate("end\n")
        assert [each.returncode for each in running] == [0] * 4
        assert names(cluster, namespace, "SandboxClaim") == []
