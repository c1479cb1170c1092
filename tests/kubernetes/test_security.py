"""Programs in a pod cannot escape its limits; no network by a policy is believed where it is seen to hold.

The network of these tests, a bridge on this machine, knows nothing of policies. This machine's firewall
lets pods reach each other, and perhaps only those that a policy allows to.
"""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.types import SandboxSpec
from tests.components import require_program, require_root
from tests.data_here import beside
from tests.docker.boxes import Box, Pods
from tests.kubernetes.cluster import Cluster, wait_until
from tests.kubernetes.here import sandboxes

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


_PROGRAMS = beside(__file__, "security.toml")
_ONLINE = {"network": "internet"}  # this cluster enforces no policies
# Any: options of every type.
_STRICT: dict[str, Any] = {"profile": "strict", "workdir": "/task/deep", "disk_mb": 64, **_ONLINE}
_SPECS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "restricted": _ONLINE,
    "strict baseline": _STRICT,
    "strict restricted": _STRICT,
}


@pytest.mark.parametrize("mode", _SPECS)
async def test_programs_find_nothing_of_the_cluster_and_no_way_out(boxes: Pods, mode: str) -> None:
    box = await boxes.start(boxes.provider(security=mode.removeprefix("strict ")), **_SPECS[mode])
    programs = {name: each for name, each in _PROGRAMS.items() if mode in each["of"]}
    found = {name: await box.python(each["code"]) for name, each in programs.items()}
    assert found == {name: each["output"] for name, each in programs.items()}
    if mode == "baseline":
        assert (await box.run("id", "-u", user="nobody"))[1] == "65534\n"
    if mode == "restricted":
        for user in ("root", "1000"):
            with pytest.raises(ConfigurationError, match=user):
                await box.run("true", user=user)
    assert await box.run("echo", "still here") == (0, "still here\n", "")


async def test_the_cluster_has_no_secret(boxes: Pods, cluster: Cluster, room: str) -> None:
    env, secrets = {"PLAIN": "seen-nowhere"}, {"TOKEN": "s3cr3t-value"}
    box = await boxes.start(env=env, secrets=secrets, command=("sleep", "98765.4321"))
    read = "import os; print(os.environ['PLAIN'], os.environ['TOKEN'], 'told-to-us-alone')"
    assert await box.python(read) == "seen-nowhere s3cr3t-value told-to-us-alone"
    wait_until(lambda: cluster.pods(room)[0]["status"]["phase"] == "Running", "the node's word")
    shown = json.dumps(cluster.pods(room))
    for hidden in ("seen-nowhere", "s3cr3t-value", "told-to-us-alone", "98765.4321"):
        assert hidden not in shown
    # The runtime writes what goes over attach to the node's disk; exec is not logged.
    with pytest.raises(json.JSONDecodeError) as log:
        cluster.request("GET", f"/api/v1/namespaces/{room}/pods/{box.id}/log")
    assert log.value.doc == ""


_BRIDGE = "sbkkube0"
_SEEN = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


@pytest.fixture
def firewall() -> None:
    """This machine's, which has to see what crosses the bridge."""
    require_root("iptables is for root")
    require_program("iptables", "")
    if not _SEEN.exists() or _SEEN.read_text().strip() != "1":
        pytest.skip("this machine's firewall does not see what crosses a bridge")
    if not Path(f"/sys/class/net/{_BRIDGE}").exists():
        pytest.skip(f"the pods of this cluster are not on the bridge {_BRIDGE}")


@contextmanager
def rule(*words: str) -> Iterator[None]:
    """One rule of the firewall, before all others."""
    subprocess.run(["iptables", "-w", "-I", "FORWARD", *words], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["iptables", "-w", "-D", "FORWARD", *words], check=True, capture_output=True)


@contextmanager
def enforced(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Enforce policies as a network plugin does: only known pods that no policy selects reach others."""
    over = threading.Event()

    def allow() -> None:
        known: set[str] = set()
        with ExitStack() as rules:
            while not over.wait(0.1):
                for pod in cluster.pods(namespace, "sandboxkit.dev/network=internet"):
                    new = pod["status"].get("podIP")
                    if new and new not in known:
                        for other in known:
                            for pair in ("-s", new, "-d", other), ("-s", other, "-d", new):
                                rules.enter_context(rule("-i", _BRIDGE, *pair, "-j", "ACCEPT"))
                        known.add(new)

    with rule("-i", _BRIDGE, "-j", "DROP"):
        thread = threading.Thread(target=allow)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@pytest.mark.usefixtures("firewall")
async def test_an_unenforced_network_policy_is_refused(own_cluster: Cluster, room: str) -> None:
    provider = KubernetesProvider(no_network="policy")
    with rule("-i", _BRIDGE, "-o", _BRIDGE, "-j", "ACCEPT"):  # every pod reaches every other one
        for output in ("does not enforce network policies", "no_network='interfaces'"):
            # The second time it is remembered.
            with pytest.raises(ConfigurationError, match=output):
                await provider.create(SandboxSpec())
        found = await provider.diagnose()
    assert not found.available
    assert "does not enforce" in found.remedy
    free = await provider.create(SandboxSpec(network="internet"))
    await free.delete()
    await provider.aclose()
    wait_until(lambda: sandboxes(own_cluster, room) == [], "the canaries' end")
    path = f"/apis/networking.k8s.io/v1/namespaces/{room}/networkpolicies/sandboxkit-no-network"
    policy = own_cluster.request("GET", path)["spec"]
    assert policy["podSelector"] == {"matchLabels": {"sandboxkit.dev/network": "none"}}
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
    assert not policy.get("egress")
    assert not policy.get("ingress")


@pytest.mark.usefixtures("firewall")
async def test_nothing_is_proven_if_no_pod_reaches_another(own_cluster: Cluster, room: str) -> None:
    provider = KubernetesProvider(security="restricted")
    with (
        rule("-i", _BRIDGE, "-j", "DROP"),
        pytest.raises(ConfigurationError, match="could not be verified"),
    ):
        await provider.create(SandboxSpec())
    await provider.aclose()
    wait_until(lambda: sandboxes(own_cluster, room) == [], "the canaries' end")


@pytest.mark.usefixtures("firewall")
async def test_a_policy_that_is_enforced_is_used(own_cluster: Cluster, room: str) -> None:
    provider = KubernetesProvider(security="restricted")
    with enforced(own_cluster, room):
        found = await provider.diagnose()
        assert found.available, found.remedy
        assert "enforces network policies" in found.detail
        sandbox = await provider.create(SandboxSpec())
        pods = own_cluster.pods(room, "sandboxkit.dev/network=none")
        left = [each for each in pods if "deletionTimestamp" not in each["metadata"]]
        assert [each["metadata"]["name"] for each in left] == [sandbox.id]
        assert await Box(sandbox).run("echo", "up") == (0, "up\n", "")
        await sandbox.delete()
    await provider.aclose()
