"""Why pods do not start and why they end: each cause brought about on a real cluster."""

import json
import secrets
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from aiohttp import web

from sandboxkit import errors
from sandboxkit.errors import (
    CapacityError,
    ImageNotFoundError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
)
from sandboxkit.providers.kubernetes import _ends
from sandboxkit.providers.kubernetes._exec import PodExecStream
from sandboxkit.providers.kubernetes._starting import Start
from sandboxkit.providers.kubernetes._watch import PodStatus
from tests.docker.registry import Registry
from tests.kubernetes.answers import answering
from tests.kubernetes.bare import connected, create, manifest, remove
from tests.kubernetes.cluster import Cluster, kubectl

pytestmark = pytest.mark.anyio

# Any, here and below: manifests are JSON.
_CASES: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("ends.toml").read_text()
)


async def _nothing() -> None: ...


async def _no_agent() -> PodExecStream:
    raise SandboxNotFoundError("no agent runs in it")


async def _start_error(
    cluster: Cluster,
    namespace: str,
    container: dict[str, Any],
    *,
    late: str = "",
    denied: Callable[[], object] | None = None,
    **spec: Any,
) -> SandboxError:
    """The error of a start: of its time limit, once the cluster has said `late`; `denied` is called after
    the first pull that is denied."""

    name = f"pod-{secrets.token_hex(4)}"  # events are found by the name
    async with connected(cluster, namespace) as (api, watch):
        watch.follow(name)
        try:
            _, pod = await create(cluster, namespace, manifest(name, container, **spec))
            watch.follow(name, pod)
            with anyio.fail_after(60):
                while late or denied:
                    seen, events = watch.last(name), await _ends.events_of(api, name)
                    assert seen is not None
                    if late and json.dumps(late)[1:-1] in json.dumps([seen.pod, events]):
                        break
                    if denied and _ends.was_denied_once(seen, events):
                        await anyio.to_thread.run_sync(denied)
                        break
                    await anyio.sleep(0.1)
            start = Start(api, watch, name, _no_agent, _nothing, seconds=0.5 if late else 60)
            with pytest.raises(SandboxError) as caught:
                await start.stream()
            return caught.value
        finally:
            with anyio.CancelScope(shield=True):
                await remove(cluster, namespace, name)


@pytest.mark.parametrize("case", _CASES["starts"].values(), ids=_CASES["starts"])
async def test_a_pod_that_does_not_start_is_the_error_of_its_cause(
    cluster: Cluster, namespace: str, tmp_path: Path, case: dict[str, Any]
) -> None:
    async def registry(request: web.Request) -> web.StreamResponse:
        unknown = {"errors": [{"code": "MANIFEST_UNKNOWN"}]}
        return web.json_response(unknown, status=case["registry"])

    async with answering(registry, tmp_path) as (answers, _):
        address = answers.server.removeprefix("http://")
        container = case.get("container", {})
        if "registry" in case:
            container = {"image": f"{address}/no/such:1"}
        late = case["words"][0] if "late" in case else ""
        error = await _start_error(cluster, namespace, container, late=late, **case.get("spec", {}))
    assert type(error) is getattr(errors, case["raised"])
    for words in case["words"]:
        assert words.replace("REGISTRY", address) in str(error)
    assert ("did not start within 0.5 s" in str(error)) == bool(late)


async def test_a_private_image_is_pulled_with_the_command_of_its_error(
    cluster: Cluster, namespace: str
) -> None:
    """Also if its node pulled in vain before it knew the secret."""
    with Registry("s3cret") as registry:
        container = {"image": registry.image}
        error = await _start_error(cluster, namespace, container)
        assert type(error) is ImageNotFoundError
        command = str(error).split("`")[1]
        given = {"HOST": registry.host, "USER": "me", "PASSWORD": "s3cret", "NAME": "pull"}
        for name, value in given.items():
            command = command.replace(name, value)
        assert command.startswith(f"kubectl create secret docker-registry pull -n {namespace} ")
        try:
            error = await _start_error(
                cluster,
                namespace,
                container,
                denied=lambda: kubectl(*command.split()[1:]),
                imagePullSecrets=[{"name": "pull"}],
            )
        finally:
            kubectl("delete", "secret", "pull", "-n", namespace)
    assert type(error) is SandboxStartError  # it has no program in it
    assert "executable file not found" in str(error)


@pytest.mark.parametrize(
    ("message", "count", "secrets", "waits"),
    [
        ("401 Unauthorized", 1, [{"name": "pull"}], True),
        ("401 Unauthorized", 2, [{"name": "pull"}], False),
        ("401 Unauthorized", 1, [], False),
        ("manifest unknown", 1, [{"name": "pull"}], False),
    ],
    ids=["denied once", "denied twice", "without a secret", "missing"],
)
def test_one_denied_pull_with_a_secret_is_not_the_end(
    message: str, count: int, secrets: list[dict[str, str]], waits: bool
) -> None:
    state = {"waiting": {"reason": "ErrImagePull", "message": message}}
    status = {"phase": "Pending", "containerStatuses": [{"name": "sandbox", "state": state}]}
    seen = PodStatus({"spec": {"imagePullSecrets": secrets}, "status": status})
    events = [{"reason": "Pulling"}, {"reason": "Failed", "message": "failed to pull and unpack"}]
    events[1] |= {"message": f"Failed to pull image: {message}", "count": count}  # type: ignore[dict-item]
    assert _ends.was_denied_once(seen, events) is waits
    assert _ends.was_denied_once(seen, events[:1]) is (waits or count == 2)  # it was not told yet
    assert not _ends.was_denied_once(seen, [])  # the events may not be listed


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


@pytest.mark.parametrize("case", _CASES["ends"].values(), ids=_CASES["ends"])
async def test_a_pod_that_ends_by_itself_names_the_cause(
    cluster: Cluster, namespace: str, case: dict[str, Any]
) -> None:
    body = manifest("pod", case.get("container", {}), **case.get("spec", {}))
    async with connected(cluster, namespace) as (_, watch):
        watch.follow("pod")
        await create(cluster, namespace, body)
        seen = await watch.until("pod", _ends.has_ended, seconds=120)
        await remove(cluster, namespace, "pod")
    error = _ends.end_error(seen, sandbox_id="pod")
    assert case["words"] in str(error)
    assert error.out_of_memory == case.get("out_of_memory", False)


_GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}


async def test_a_start_waits_for_the_admission_by_its_queue(
    cluster: Cluster, namespace: str
) -> None:
    """No scheduler knows the pod: the test writes the condition and the node that Kueue and a newer server write."""
    body = manifest("pod", schedulerName="nobody")
    body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team-a"
    path = f"/api/v1/namespaces/{namespace}/pods/pod"
    target = {"apiVersion": "v1", "kind": "Node", "name": "node1"}
    binding = {"metadata": {"name": "pod"}, "target": target}
    async with connected(cluster, namespace) as (api, watch):

        def connect() -> Awaitable[PodExecStream]:
            return api.exec("pod", "sandbox", ["cat"])

        async def admit() -> None:  # by the node, which also ends the condition
            await anyio.to_thread.run_sync(cluster.request, "POST", f"{path}/binding", binding)

        watch.follow("pod")
        _, pod = await create(cluster, namespace, body)
        watch.follow("pod", pod)
        gated = {"status": {"conditions": [_GATED]}}
        cluster.request(
            "PATCH", f"{path}/status", gated, content="application/strategic-merge-patch+json"
        )
        seen = await watch.until("pod", lambda seen: _ends.wait_of(seen) != "", seconds=30)
        assert _ends.wait_of(seen) == "pod waits: it is not admitted yet by the queue 'team-a'"
        with pytest.raises(CapacityError, match=r"within 1 s.*queue 'team-a'.*start_timeout"):
            await Start(api, watch, "pod", connect, _nothing, seconds=1).stream()
        async with anyio.create_task_group() as group:
            group.start_soon(admit)
            stream = await Start(api, watch, "pod", connect, _nothing, seconds=60).stream()
            await stream.send(b"admitted")
            assert await stream.receive() == b"admitted"
            await stream.aclose()
        await remove(cluster, namespace, "pod")
