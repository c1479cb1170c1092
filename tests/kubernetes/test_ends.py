"""Why pods do not start and why they end: each cause brought about on a real cluster."""

import asyncio
import contextlib
import http.server
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest

from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    ConfigurationError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.integrations.rewards._boundary import Phase, verdict_of
from sandboxkit.integrations.rewards._verdict import Outcome
from sandboxkit.providers.kubernetes import _ends
from sandboxkit.providers.kubernetes._watch import PodStatus
from tests.docker.registry import Registry
from tests.kubernetes.bare import connected, create, manifest, remove, running
from tests.kubernetes.cluster import Cluster, kubectl

pytestmark = pytest.mark.anyio


async def _start_error(
    cluster: Cluster,
    namespace: str,
    container: dict[str, Any] | None = None,
    *,
    seconds: float = 30,
    event: str = "",
    **spec: Any,
) -> SandboxError:
    """The error for a pod that does not start, as a provider finds it: late, once `event` is told."""
    async with connected(cluster, namespace) as (api, watch):
        watch.follow("pod")

        def decided(seen: PodStatus) -> bool:
            return _ends.start_error(seen) is not None  # one that ends at once may be seen to run

        try:
            _, pod = await create(cluster, namespace, manifest("pod", container, **spec))
            watch.follow("pod", pod)
            try:
                seen = await watch.until("pod", decided, seconds=seconds)
            except TimeoutError:
                with anyio.fail_after(60):
                    while True:
                        events = await _ends.events_of(api, "pod")
                        if any(event in each["message"] for each in events):
                            break
                        await anyio.sleep(0.1)
                return _ends.late_error(watch.last("pod"), events, seconds=seconds)
            error = _ends.start_error(seen, await _ends.events_of(api, "pod"))
            assert error is not None
            return error
        finally:
            with anyio.CancelScope(shield=True):
                await remove(cluster, namespace, "pod")


@contextlib.contextmanager
def _registry(code: int, body: str) -> Iterator[str]:
    """A registry that has nothing, and says it this way; its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body.encode())

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("image", "policy", "words"),
    [
        ("No//SUCH", "IfNotPresent", "couldn't parse image"),
        ("no/such:1", "Never", "pull policy of Never"),
        ("registry.invalid/no/such:1", "Always", "no such host"),
    ],
)
async def test_an_invalid_image_is_reported_at_once(
    cluster: Cluster, namespace: str, image: str, policy: str, words: str
) -> None:
    container = {"image": image, "imagePullPolicy": policy}
    error = await _start_error(cluster, namespace, container)
    assert type(error) is ImageNotFoundError
    assert repr(image) in str(error)
    assert words in str(error)


@pytest.mark.parametrize("code", [404, 401, 403])
async def test_an_image_that_its_registry_does_not_give_is_not_found(
    cluster: Cluster, namespace: str, code: int
) -> None:
    with _registry(code, '{"errors":[{"code":"MANIFEST_UNKNOWN"}]}') as address:
        error = await _start_error(cluster, namespace, {"image": f"{address}/no/such:1"})
    assert type(error) is ImageNotFoundError
    assert address in str(error)


@pytest.mark.parametrize("code", [500, 429])
async def test_a_registry_that_fails_is_waited_for_and_no_fault_of_the_image(
    cluster: Cluster, namespace: str, code: int
) -> None:
    with _registry(code, "{}") as address:
        error = await _start_error(cluster, namespace, {"image": f"{address}/a:1"}, seconds=4)
    assert type(error) is ProviderUnavailableError
    assert str(code) in str(error)


async def test_a_missing_registry_is_retried(cluster: Cluster, namespace: str) -> None:
    error = await _start_error(cluster, namespace, {"image": "127.0.0.1:1/a:1"}, seconds=4)
    assert type(error) is ProviderUnavailableError
    assert "connection refused" in str(error)


async def test_the_error_for_a_private_image_has_the_command_with_which_it_is_pulled(
    cluster: Cluster, namespace: str
) -> None:
    with Registry("s3cret") as registry:
        error = await _start_error(cluster, namespace, {"image": registry.image})
        assert type(error) is ImageNotFoundError
        command = str(error).split("`")[1]
        for name, value in (
            ("HOST", registry.host),
            ("USER", "me"),
            ("PASSWORD", "s3cret"),
            ("NAME", "pull"),
        ):
            command = command.replace(name, value)
        assert command.startswith(f"kubectl create secret docker-registry pull -n {namespace} ")
        kubectl(*command.split()[1:])
        try:
            error = await _start_error(
                cluster, namespace, {"image": registry.image}, imagePullSecrets=[{"name": "pull"}]
            )
        finally:
            kubectl("delete", "secret", "pull", "-n", namespace)
    assert type(error) is SandboxStartError  # it has no program in it
    assert "executable file not found" in str(error)


_KEY = {"name": "nosuch", "key": "x"}


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (
            {"command": ["nosuchprogram"]},
            "StartError, exit status 128: .*executable file not found",
        ),
        ({"securityContext": {"runAsNonRoot": True}}, "image will run as root"),
        (
            {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": _KEY}}]},
            'CreateContainerConfigError: configmap "nosuch" not found',
        ),
        (
            {
                "command": ["sh", "-c", "echo last words; exit 7"],
                "terminationMessagePolicy": "FallbackToLogsOnError",
            },
            "ended at once: Error, exit status 7: last words",
        ),
    ],
)
async def test_a_container_that_cannot_start_is_reported_at_once(
    cluster: Cluster, namespace: str, container: dict[str, Any], words: str
) -> None:
    error = await _start_error(cluster, namespace, container)
    assert type(error) is SandboxStartError
    with pytest.raises(SandboxStartError, match=words):
        raise error


@pytest.mark.parametrize(
    ("spec", "kind", "words"),
    [
        ({"resources": {"requests": {"cpu": "100"}}}, CapacityError, "1 Insufficient cpu"),
        (
            {"resources": {"limits": {"nvidia.com/gpu": "1"}}},
            CapacityError,
            "Insufficient nvidia.com/gpu",
        ),
    ],
)
async def test_a_pod_without_a_node_is_reported_at_the_deadline(
    cluster: Cluster, namespace: str, spec: dict[str, Any], kind: type[SandboxError], words: str
) -> None:
    error = await _start_error(cluster, namespace, spec, seconds=3)
    assert type(error) is kind
    assert words in str(error)
    assert "within 3 s" in str(error)


async def test_a_limit_below_the_minimum_of_a_container_is_reported(
    cluster: Cluster, namespace: str
) -> None:
    container = {"resources": {"limits": {"memory": "1Mi"}}}
    words = "memory limit too low"
    error = await _start_error(cluster, namespace, container, seconds=1, event=words)
    assert type(error) is SandboxStartError
    assert words in str(error)


async def test_a_pod_that_fits_no_node_is_not_a_capacity_error(
    cluster: Cluster, namespace: str
) -> None:
    error = await _start_error(cluster, namespace, nodeSelector={"no": "such"}, seconds=3)
    assert type(error) is SandboxStartError
    assert "0/1 nodes are available: 1 node(s) didn't match" in str(error)


async def test_what_a_pod_lacks_on_its_node_is_in_its_events(
    cluster: Cluster, namespace: str
) -> None:
    volumes = [{"name": "v", "configMap": {"name": "nosuch"}}]
    container = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    words = 'configmap "nosuch" not found'
    error = await _start_error(
        cluster, namespace, container, volumes=volumes, seconds=1, event=words
    )
    assert type(error) is ProviderUnavailableError
    assert words in str(error)


async def test_a_node_that_refuses_a_pod_has_no_room(cluster: Cluster, namespace: str) -> None:
    container = {"resources": {"requests": {"cpu": "100"}}}
    error = await _start_error(cluster, namespace, container, nodeName="node1")
    assert type(error) is CapacityError
    assert "OutOfcpu" in str(error)


async def test_a_pod_that_is_deleted_while_it_starts_has_not_started(
    cluster: Cluster, namespace: str
) -> None:
    async with connected(cluster, namespace) as (_, watch):
        watch.follow("pod")
        await create(cluster, namespace, manifest("pod", nodeSelector={"no": "such"}))
        await watch.until("pod", lambda seen: True, seconds=30)
        await remove(cluster, namespace, "pod")
        seen = await watch.until("pod", _ends.has_ended, seconds=30)
    error = _ends.start_error(seen)
    assert type(error) is SandboxStartError
    assert "it was deleted" in str(error)


_LIMIT = {"resources": {"limits": {"memory": "60Mi"}}}
_EAT = "exec python3 -c 'x = bytearray(1 << 30)'"


async def _end(
    cluster: Cluster,
    namespace: str,
    container: dict[str, Any],
    act: Any = None,
    event: str = "",
    **spec: Any,
) -> SandboxTerminatedError:
    """The error for a pod that runs and then ends, by itself or because of `act(pod)`."""
    async with connected(cluster, namespace) as (api, watch):
        async with running(cluster, namespace, watch, container, **spec) as pod:
            if act is not None:
                await act(pod)
            seen = await watch.until(pod, _ends.has_ended, seconds=120)
            with anyio.fail_after(60):
                while True:
                    events = await _ends.events_of(api, pod)
                    if not event or any(each["reason"] == event for each in events):
                        break
                    await anyio.sleep(0.1)
            error = _ends.end_error(seen, events, sandbox_id=pod)
        assert type(error) is SandboxTerminatedError
        assert error.sandbox_id == pod
        return error


def _outcome(error: SandboxError) -> Outcome:
    return verdict_of(error, Phase.GRADED).outcome


async def test_a_pod_over_its_memory_is_out_of_memory(cluster: Cluster, namespace: str) -> None:
    container = {"command": ["sh", "-c", f"sleep 2; {_EAT}"], **_LIMIT}
    error = await _end(cluster, namespace, container)
    assert error.out_of_memory
    assert "exceeded its memory limit" in str(error)
    assert _outcome(error) is Outcome.OOM


async def test_a_sandbox_whose_program_was_out_of_memory_may_end_for_another_reason(
    cluster: Cluster, namespace: str
) -> None:
    script = f"sleep 2; ({_EAT}); sleep 1; exit 9"
    error = await _end(cluster, namespace, {"command": ["sh", "-c", script], **_LIMIT})
    # On cgroup v2 a kubelet may let the whole container die with it.
    assert error.out_of_memory == ("memory limit" in str(error))
    if not error.out_of_memory:
        assert "exit status 9" in str(error)


async def test_a_deletion_is_no_lack_of_memory_although_some_was_lacking(
    cluster: Cluster, namespace: str
) -> None:
    script = f"({_EAT}); touch /tmp/over; exec sleep infinity"
    async with connected(cluster, namespace) as (api, watch):
        container = {"command": ["sh", "-c", script], **_LIMIT}
        async with running(cluster, namespace, watch, container) as pod:
            waits = "until test -e /tmp/over; do sleep 0.1; done; echo over"
            stream = await api.exec(pod, "sandbox", ["sh", "-c", waits])
            with anyio.fail_after(60):
                assert await stream.receive() == b"over\n"
            await stream.aclose()
            await remove(cluster, namespace, pod, grace=1)
            seen = await watch.until(pod, lambda seen: seen.gone, seconds=60)
            error = _ends.end_error(seen, sandbox_id=pod)
    assert not error.out_of_memory
    assert "it was deleted" in str(error)
    assert _outcome(error) is Outcome.INFRA_ERROR


_FILL = "sleep 2; head -c 60000000 /dev/zero > {}/x; exec sleep infinity"
_DISK = {"command": ["sh", "-c", _FILL.format("/var")]}


@pytest.mark.nightly
async def test_a_pod_over_its_disk_limit_is_reported(cluster: Cluster, namespace: str) -> None:
    limit = {"resources": {"limits": {"ephemeral-storage": "10Mi"}}}
    volume = {
        "command": ["sh", "-c", _FILL.format("/v")],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    }
    volumes = [{"name": "v", "emptyDir": {"sizeLimit": "10Mi"}}]
    errors = await asyncio.gather(
        _end(cluster, namespace, _DISK | limit), _end(cluster, namespace, volume, volumes=volumes)
    )
    for error, words in zip(errors, ("total limit of containers", "EmptyDir"), strict=True):
        assert error.out_of_memory
        assert "exceeded its disk limit" in str(error)
        assert words in str(error)
        assert _outcome(error) is Outcome.OOM


async def test_the_end_of_the_longest_lifetime_is_reported(
    cluster: Cluster, namespace: str
) -> None:
    error = await _end(cluster, namespace, {}, activeDeadlineSeconds=3)
    assert not error.out_of_memory
    assert "its longest lifetime is over" in str(error)
    assert _outcome(error) is Outcome.INFRA_ERROR


async def test_an_eviction_by_the_api_is_the_infrastructures(
    cluster: Cluster, namespace: str
) -> None:
    async def evict(pod: str) -> None:
        body = {
            "apiVersion": "policy/v1" if cluster.has_version(22) else "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
        await anyio.to_thread.run_sync(cluster.request, "POST", path, body)

    error = await _end(cluster, namespace, {}, evict)
    assert "it was deleted" in str(error)
    assert _outcome(error) is Outcome.INFRA_ERROR


async def test_a_preemption_is_an_infrastructure_error(cluster: Cluster, namespace: str) -> None:
    name = f"{namespace}-high"
    kind = {"metadata": {"name": name}, "value": 1000}
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    cluster.request("POST", path, kind)
    most = {"resources": {"requests": {"cpu": "1100m"}}}

    async def take_its_place(pod: str) -> None:
        await create(cluster, namespace, manifest("high", most, priorityClassName=name))

    try:
        error = await _end(cluster, namespace, most, take_its_place, "Preempted")
    finally:
        await remove(cluster, namespace, "high")
        cluster.request("DELETE", f"{path}/{name}")
    assert "Preempted" in str(error)
    assert _outcome(error) is Outcome.INFRA_ERROR


async def test_a_silent_node_is_lost_until_it_returns(own_cluster: Cluster, namespace: str) -> None:
    async with (
        connected(own_cluster, namespace) as (_, watch),
        running(own_cluster, namespace, watch) as pod,
    ):
        seen = watch.last(pod)
        assert seen is not None
        assert not _ends.is_lost(seen)
        with own_cluster.frozen("kubelet"):
            seen = await watch.until(pod, _ends.is_lost, seconds=150)
            assert not _ends.has_ended(seen)
            assert "its node does not report" in str(_ends.end_error(seen, sandbox_id=pod))
        await watch.until(pod, lambda seen: not _ends.is_lost(seen), seconds=60)


def _pod(**status: Any) -> PodStatus:
    return PodStatus({"metadata": {"name": "pod"}, "spec": {"nodeName": "n"}, "status": status})


def test_an_eviction_is_an_infrastructure_error() -> None:
    """As nodes under pressure leave a pod, under which this cluster's only node cannot be put."""
    killed = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    message = "The node was low on resource: memory. Container sandbox was using 500Mi"
    status = {"phase": "Failed", "reason": "Evicted", "message": message}
    for containers in ([], [{"name": "sandbox", "state": killed}]):
        error = _ends.end_error(_pod(**status, containerStatuses=containers), sandbox_id="pod")
        assert not error.out_of_memory
        assert message in str(error)
        assert _outcome(error) is Outcome.INFRA_ERROR


def test_what_the_agent_said_comes_first() -> None:
    running = _pod(phase="Running")
    assert "its lifetime is over" in str(
        _ends.end_error(running, sandbox_id="pod", reason="lifetime")
    )
    assert "its agent was killed" in str(_ends.end_error(None, sandbox_id="pod"))


async def test_the_limits_of_the_namespace_are_reported(cluster: Cluster, namespace: str) -> None:
    def make(kind: str, name: str, spec: dict[str, Any]) -> str:
        path = f"/api/v1/namespaces/{namespace}/{kind}"
        cluster.request("POST", path, {"metadata": {"name": name}, "spec": spec})
        return f"{path}/{name}"

    async def refusal(container: dict[str, Any]) -> SandboxError:
        async with connected(cluster, namespace) as (api, _):
            try:
                body = manifest("pod", container)
                await api.call("POST", await api.path("pods"), body, what="create a sandbox")
            except SandboxError as error:
                return error
            await remove(cluster, namespace, "pod")
            raise AssertionError("it was created")

    quota = make("resourcequotas", "q", {"hard": {"pods": "0"}})
    await _until_counted(cluster, quota)
    error = await refusal({})
    assert type(error) is CapacityError
    assert "exceeded quota: q" in str(error)
    cluster.request("DELETE", quota)

    quota = make("resourcequotas", "m", {"hard": {"limits.memory": "1Gi"}})
    await _until_counted(cluster, quota)
    error = await refusal({})
    assert type(error) is ConfigurationError
    assert "memory_mb" in str(error)
    cluster.request("DELETE", quota)

    limits = [{"type": "Container", "max": {"memory": "64Mi"}}]
    made = make("limitranges", "l", {"limits": limits})
    error = await refusal({"resources": {"limits": {"memory": "1Gi"}}})
    assert type(error) is ConfigurationError
    assert "maximum memory usage per Container is 64Mi" in str(error)
    assert not isinstance(error, AuthenticationError)
    cluster.request("DELETE", made)


async def _until_counted(cluster: Cluster, quota: str) -> None:
    with anyio.fail_after(60):
        while "used" not in cluster.request("GET", quota).get("status", {}):
            await anyio.sleep(0.05)
