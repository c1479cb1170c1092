"""Programs in a pod cannot escape its limits, in each of the two security modes and without a network."""

import json
from collections.abc import AsyncIterator

import anyio
import pytest

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.types import SandboxSpec
from tests.kubernetes.cluster import Cluster, kubectl, wait_until
from tests.kubernetes.rooms import Box, provider, room

__all__ = ["provider", "room"]

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


@pytest.fixture
async def box(cluster: Cluster, provider: KubernetesProvider) -> AsyncIterator[Box]:
    sandbox_id = await provider.create(SandboxSpec())
    yield Box(provider, sandbox_id)
    await provider.delete(sandbox_id)


@pytest.fixture
async def restricted(cluster: Cluster, room: str) -> AsyncIterator[Box]:
    """A sandbox of one user, with a network: this cluster enforces no policies."""
    provider = KubernetesProvider(security="restricted")
    sandbox_id = await provider.create(SandboxSpec(network="internet"))
    yield Box(provider, sandbox_id)
    await provider.delete(sandbox_id)
    await provider.aclose()


_NOTHING_OF_THE_CLUSTER = """
import os
print([name for name in os.environ if "KUBERNETES" in name or "_SERVICE_" in name or "_PORT" in name])
print(os.path.exists("/var/run/secrets/kubernetes.io"))
"""
_PRIVILEGES = """
import json, os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(json.dumps({name: status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp")}))
"""
_AGENT = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
assert libc.ptrace(16, 1, 0, 0) == -1 and ctypes.get_errno() == 1
for path in ("mem", "environ", "maps", "cmdline"):
    try:
        data = open(f"/proc/1/{path}", "rb").read(1)
    except OSError:
        continue
    assert path == "cmdline" or data == b"", path
try:
    os.readlink("/proc/1/exe")
except PermissionError:
    pass
else:
    raise AssertionError("its links can be followed")
for sig in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV):
    try:
        os.kill(1, sig)
    except PermissionError:
        pass
print("intact")
"""
# Each further client has a process of its own in the pod, which joins its stream to the agent.
_BRIDGES = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
seen, end = 0, time.monotonic() + 5
while time.monotonic() < end or not seen:
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (1, os.getpid()):
            continue
        try:
            parent = [line for line in open(f"/proc/{name}/status") if line.startswith("PPid:")][0]
        except OSError:
            continue
        if parent.split()[1] == "0":
            seen += 1
            assert libc.ptrace(16, int(name), 0, 0) == -1, "it can be traced"
            try:
                open(f"/proc/{name}/mem", "rb")
            except OSError:
                continue
            raise AssertionError("its memory can be opened")
print("closed")
"""


async def test_a_baseline_program_has_nothing_of_the_cluster(box: Box) -> None:
    assert await box.python(_NOTHING_OF_THE_CLUSTER) == "[]\nFalse"


async def test_a_restricted_program_has_nothing_of_the_cluster(restricted: Box) -> None:
    assert await restricted.python(_NOTHING_OF_THE_CLUSTER) == "[]\nFalse"


async def test_baseline_commands_have_no_privileges(box: Box) -> None:
    assert await _privileges(box) == set()
    assert await box.python("import os; print(os.getuid())") == "0"
    assert (await box.run("id", "-u", user="nobody"))[1] == "65534\n"


async def test_restricted_commands_have_no_privileges(restricted: Box) -> None:
    assert await _privileges(restricted) == set()
    code = "import os; print(os.getuid(), os.getgid(), os.getcwd()); open('mine', 'w')"
    assert await restricted.python(code) == "65534 65534 /workspace"
    with pytest.raises(ConfigurationError, match="root"):
        await restricted.run("true", user="root")
    with pytest.raises(ConfigurationError, match="1000"):
        await restricted.run("true", user="1000")


async def _privileges(box: Box) -> set[str]:
    found: dict[str, str] = json.loads(await box.python(_PRIVILEGES))
    assert (found.pop("NoNewPrivs"), found.pop("Seccomp")) == ("1", "2")
    return {name for name, value in found.items() if int(value, 16)}


async def test_the_agent_of_a_baseline_pod_is_out_of_reach(box: Box) -> None:
    assert await box.python(_AGENT) == "intact"
    assert await box.run("echo", "still here") == (0, "still here\n", "")


async def test_the_agent_of_a_restricted_pod_is_out_of_reach(restricted: Box) -> None:
    assert await restricted.python(_AGENT) == "intact"
    assert await restricted.run("echo", "still here") == (0, "still here\n", "")


async def test_what_joins_a_client_to_the_agent_cannot_be_traced(restricted: Box) -> None:
    assert await restricted.python(_BRIDGES) == "closed"


async def test_without_a_network_there_is_no_interface(box: Box) -> None:
    code = """
import os, socket
print(sorted(os.listdir("/sys/class/net")))
for address in (("1.1.1.1", 53), ("10.97.0.1", 443), ("10.98.0.1", 10250)):
    try:
        socket.create_connection(address, 5)
    except OSError as error:
        print(error.errno)
try:
    socket.gethostbyname("kubernetes.default.svc")
except OSError:
    print("no name")
"""
    assert await box.python(code) == "['lo']\n101\n101\n101\nno name"


async def test_with_a_network_there_is_one(cluster: Cluster, provider: KubernetesProvider) -> None:
    sandbox_id = await provider.create(SandboxSpec(network="internet"))
    code = "import os; print(len(os.listdir('/sys/class/net')) > 1)"
    assert await Box(provider, sandbox_id).python(code) == "True"
    await provider.delete(sandbox_id)


async def test_restricted_pods_pass_the_admission_that_refuses_others(
    cluster: Cluster, room: str, restricted: Box
) -> None:
    """By PodSecurity, and by a ValidatingAdmissionPolicy of the test's."""
    if not cluster.has_version(30):
        pytest.skip("Kubernetes 1.30 is the first to serve v1 of ValidatingAdmissionPolicy")
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": room}}}
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    rule = "object.spec.containers.all(each, each.securityContext.runAsNonRoot)"
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {**where, "resourceRules": [{**pods, "operations": ["CREATE"]}]},
        "validations": [{"expression": rule, "message": "no root here"}],
    }
    binding = {"policyName": room, "validationActions": ["Deny"]}
    level = "pod-security.kubernetes.io/enforce=restricted"
    baseline = KubernetesProvider(no_network="policy")
    kubectl("label", "namespace", room, level)
    await _until_refused(baseline, "violates PodSecurity")
    assert await restricted.python("print('inside')") == "inside"
    kubectl("label", "namespace", room, "pod-security.kubernetes.io/enforce-")
    cluster.request("POST", f"{path}ies", {"metadata": {"name": room}, "spec": policy})
    try:
        cluster.request("POST", f"{path}ybindings", {"metadata": {"name": room}, "spec": binding})
        await _until_refused(baseline, "no root here")
        kubectl("label", "namespace", room, level)
        sandbox_id = await restricted.provider.create(SandboxSpec(network="internet"))
        assert await Box(restricted.provider, sandbox_id).python("print('inside')") == "inside"
        await restricted.provider.delete(sandbox_id)
    finally:
        kubectl("delete", "validatingadmissionpolicy", room)
        kubectl("delete", "validatingadmissionpolicybinding", room, "--ignore-not-found")
    await baseline.aclose()


async def _until_refused(provider: KubernetesProvider, words: str) -> None:
    """Wait until the server knows a new rule, for which doctor finds that it refuses the pod."""
    with anyio.fail_after(60):
        while words not in (await provider.diagnose()).remedy:
            await anyio.sleep(0.2)


@pytest.mark.parametrize("security", ["baseline", "restricted"])
async def test_strict_writes_to_its_volumes_alone(
    cluster: Cluster, room: str, security: str
) -> None:
    # mypy: any string that a variable may hold.
    provider = KubernetesProvider(security=security)  # type: ignore[arg-type]
    spec = SandboxSpec(profile="strict", network="internet", workdir="/task/deep", disk_mb=64)
    sandbox_id = await provider.create(spec)
    code = """
import os
assert os.getuid() != 0
writable = []
for folder in ("/", "/etc", "/usr", "/var", "/var/tmp", "/home", "/root", "/opt", "/run", "/dev",
               "/tmp", "/task/deep", "/.sandboxkit"):
    try:
        open(os.path.join(folder, "probe"), "w").close()
        writable.append(folder)
    except OSError:
        pass
print(os.getcwd(), writable)
"""
    assert await Box(provider, sandbox_id).python(code) == "/task/deep ['/tmp', '/task/deep']"
    await provider.delete(sandbox_id)
    await provider.aclose()


async def test_secrets_and_commands_are_not_in_the_cluster(
    cluster: Cluster, provider: KubernetesProvider, room: str
) -> None:
    spec = SandboxSpec(
        env={"PLAIN": "seen-nowhere"},
        secrets={"TOKEN": "s3cr3t-value"},
        command=("sleep", "98765.4321"),
    )
    sandbox_id = await provider.create(spec)
    box = Box(provider, sandbox_id)
    read = "import os; print(os.environ['PLAIN'], os.environ['TOKEN'], 'told-to-us-alone')"
    assert await box.python(read) == "seen-nowhere s3cr3t-value told-to-us-alone"
    log = f"/api/v1/namespaces/{room}/pods/{sandbox_id}/log"
    wait_until(lambda: cluster.pods(room)[0]["status"]["phase"] == "Running", "the node's word")
    shown = json.dumps(cluster.pods(room))
    for hidden in ("seen-nowhere", "s3cr3t-value", "told-to-us-alone", "98765.4321"):
        assert hidden not in shown
    # The runtime writes what goes over attach to the node's disk; exec is not logged.
    assert _text(cluster, log) == ""
    await provider.delete(sandbox_id)


def _text(cluster: Cluster, path: str) -> str:
    try:
        return str(cluster.request("GET", path))
    except json.JSONDecodeError as error:
        return error.doc
