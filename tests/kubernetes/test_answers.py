"""Each answer of an API server and each state of a pod is the error of ANSWERS.md, also on a real cluster."""

import functools
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from aiohttp import web

from sandboxkit import errors
from sandboxkit.integrations.rewards._boundary import Phase, verdict_of
from sandboxkit.integrations.rewards._verdict import Outcome
from sandboxkit.providers import kubernetes
from sandboxkit.providers.kubernetes import _ends
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._errors import refusal_of
from sandboxkit.providers.kubernetes._exec import PodExecStream
from sandboxkit.providers.kubernetes._starting import Start
from sandboxkit.providers.kubernetes._watch import PodStatus
from tests.data_here import beside
from tests.emulators._answers import Row, compare, is_raised
from tests.kubernetes.answers import answering, status
from tests.kubernetes.bare import connected, create, manifest, remove
from tests.kubernetes.cluster import Cluster, kubectl
from tests.kubernetes.registry import Registry
from tests.local.test_image import docker_save, tar_of

pytestmark = pytest.mark.anyio


# Any, here and below: TOML.
_RECORDED: dict[str, list[dict[str, Any]]] = beside(__file__, "refusals.toml")


def _row(each: dict[str, Any]) -> Row:
    """The line in the document of a refusal, or of a state."""
    raised = getattr(errors, each["raised"]) if "raised" in each else None
    if "when" in each:
        words = each["words"] + (", `out_of_memory`" if each.get("out_of_memory") else "")
        return Row((each["when"],), words, raised)
    headers = "".join(f" `{name}: {value}`" for name, value in each.get("headers", {}).items())
    answer = f"{each['status']} {each['reason']}".strip()
    text = f"{answer}{headers}: `{each['message']}`"
    return Row(tuple(each["calls"]), text, raised, each.get("retry_after"))


async def _watched(api: Api) -> None:
    async with api.watch(await api.path("pods"), "0"):
        pass


@pytest.mark.parametrize(
    ("call", "refused"),
    [(call, refused) for refused in _RECORDED["refusals"] for call in refused["calls"]],
    ids=lambda each: each if isinstance(each, str) else f"{each['status']}-{each['reason']}",
)
async def test_refusals_become_errors(tmp_path: Path, call: str, refused: dict[str, Any]) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if refused["reason"]:
            details = refused.get("details", {})
            said = status(refused["status"], refused["reason"], refused["message"], details=details)
        else:
            said = web.Response(status=refused["status"], text=refused["message"] + "x" * 5000)
        said.headers.update(refused.get("headers", {}))
        return said

    async with answering(answer, tmp_path) as (_, api):
        pods, pod = await api.path("pods"), await api.path("pods", "x")
        calls: dict[str, Callable[[], Any]] = {
            "create": lambda: api.call("POST", pods, {}, what="create a sandbox", sandbox_id="x"),
            "get": lambda: api.call("GET", pod, what="describe a sandbox", sandbox_id="x"),
            "list": lambda: api.call("GET", pods, what="list pods"),
            "delete": lambda: api.call("DELETE", pod, what="remove a sandbox", sandbox_id="x"),
            "watch": lambda: _watched(api),
            "exec": lambda: api.exec("x", "sandbox", ["true"], sandbox_id="x"),
        }
        with pytest.raises(errors.SandboxError) as caught:
            await calls[call]()
    assert is_raised(caught.value, _row(refused)), repr(caught.value)
    assert refused.get("words", "") in str(caught.value)
    assert len(str(caught.value)) < 1000
    refusal = refusal_of(caught.value)
    assert refusal is not None
    assert (refusal.status, refusal.reason) == (refused["status"], refused["reason"])


@pytest.mark.parametrize(
    "state", _RECORDED["states"], ids=lambda state: f"{state['when']}-{state['words'][:40]}"
)
def test_a_state_is_the_error_of_the_table(state: dict[str, Any]) -> None:
    pod: dict[str, Any] = {"metadata": {"name": "pod"}, "spec": {"nodeName": "n"}}
    pod |= json.loads(state.get("pod", "{}")) | {"status": json.loads(state["status"])}
    seen = PodStatus(pod)
    told, reason = json.loads(state.get("events", "[]")), state.get("reason", "")
    made: dict[str, Callable[[], errors.SandboxError | None]] = {
        "start": lambda: _ends.start_error(seen, told),
        "deadline": lambda: _ends.late_error(seen, told, seconds=1),
        "end": lambda: _ends.end_error(seen, told, sandbox_id="pod", reason=reason),
    }
    error = made[state["when"]]()
    assert is_raised(error, _row(state)), repr(error)
    if error is not None:
        assert all(part in str(error) for part in state["words"].split(" … "))
        assert error.sandbox_id == "pod"
    assert getattr(error, "out_of_memory", False) == state.get("out_of_memory", False)
    if isinstance(error, errors.SandboxTerminatedError):
        assert not error.by_command
        outcome = Outcome.OOM if error.out_of_memory else Outcome.INFRA_ERROR
        assert verdict_of(error, Phase.GRADED).outcome is outcome


def test_the_document_says_so() -> None:
    recorded = [*_RECORDED["refusals"], *_RECORDED["states"]]
    compare(Path(str(kubernetes.__file__)).resolve().with_name("ANSWERS.md"), map(_row, recorded))


def test_a_pod_that_nobody_knows_was_ended_with_its_agent() -> None:
    assert "its agent was killed" in str(_ends.end_error(None, sandbox_id="pod"))


def test_a_gate_without_a_queue_is_named() -> None:
    spec = {"schedulingGates": [{"name": "example.com/budget"}]}
    pod = {"metadata": {"name": "pod"}, "spec": spec, "status": {"phase": "Pending"}}
    waits = "pod waits: it is not admitted yet by example.com/budget"
    assert _ends.wait_of(PodStatus(pod)) == waits


# Any, here and below: manifests are JSON.
_CASES: dict[str, dict[str, dict[str, Any]]] = beside(__file__, "ends.toml")


async def _nothing() -> None: ...


async def _no_agent() -> PodExecStream:
    raise errors.SandboxNotFoundError("no agent runs in it")


async def _start_error(
    cluster: Cluster,
    namespace: str,
    container: dict[str, Any],
    *,
    late: str = "",
    denied: Callable[[], object] | None = None,
    **spec: Any,
) -> errors.SandboxError:
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
            with pytest.raises(errors.SandboxError) as caught:
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


async def test_the_command_of_an_error_pulls_its_image(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """Also if its node pulled in vain before it knew the secret."""
    with Registry(tmp_path) as registry:
        archive = docker_save(tmp_path / "image.tar", [tar_of({"hello.txt": b"hello"})])
        container = {"image": registry.push(archive, "team/hello:1")}
        error = await _start_error(cluster, namespace, container)
        assert type(error) is errors.ImageNotFoundError
        command = str(error).split("`")[1]
        given = {"HOST": registry.host, "USER": "tester", "PASSWORD": "sesame", "NAME": "pull"}
        for name, value in given.items():
            command = command.replace(name, value)
        assert command.startswith(f"kubectl create secret docker-registry pull -n {namespace} ")
        try:
            more: dict[str, Any] = {"imagePullSecrets": [{"name": "pull"}]}
            more["denied"] = lambda: kubectl(*command.split()[1:])
            error = await _start_error(cluster, namespace, container, **more)
        finally:
            kubectl("delete", "secret", "pull", "-n", namespace)
        registry.forget_pulled()
    assert type(error) is errors.SandboxStartError  # it has no program in it
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


async def test_a_pod_deleted_before_its_start_did_not_start(
    cluster: Cluster, namespace: str
) -> None:
    async with connected(cluster, namespace) as (_, watch):
        watch.follow("pod")
        await create(cluster, namespace, manifest("pod", nodeSelector={"no": "such"}))
        await watch.until("pod", lambda seen: True, seconds=30)
        await remove(cluster, namespace, "pod")
        seen = await watch.until("pod", _ends.has_ended, seconds=30)
    error = _ends.start_error(seen)
    assert type(error) is errors.SandboxStartError
    assert "it was deleted" in str(error)


@pytest.mark.parametrize("case", _CASES["ends"].values(), ids=_CASES["ends"])
async def test_a_pods_own_end_names_its_cause(
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


async def test_a_start_waits_for_its_queues_admission(cluster: Cluster, namespace: str) -> None:
    """No scheduler knows the pod: the test writes the condition and the node that Kueue and a newer server write."""
    body = manifest("pod", schedulerName="nobody")
    body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team-a"
    path = f"/api/v1/namespaces/{namespace}/pods/pod"
    target = {"apiVersion": "v1", "kind": "Node", "name": "node1"}
    binding = {"metadata": {"name": "pod"}, "target": target}
    async with connected(cluster, namespace) as (api, watch):
        connect = functools.partial(api.exec, "pod", "sandbox", ["cat"])
        watch.follow("pod")
        _, pod = await create(cluster, namespace, body)
        watch.follow("pod", pod)
        gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
        patch, content = (
            {"status": {"conditions": [gated]}},
            "application/strategic-merge-patch+json",
        )
        cluster.request("PATCH", f"{path}/status", patch, content=content)
        seen = await watch.until("pod", lambda seen: _ends.wait_of(seen) != "", seconds=30)
        assert _ends.wait_of(seen) == "pod waits: it is not admitted yet by the queue 'team-a'"
        waited = r"within 1 s.*queue 'team-a'.*start_timeout"
        with pytest.raises(errors.CapacityError, match=waited):
            await Start(api, watch, "pod", connect, _nothing, seconds=1).stream()
        async with anyio.create_task_group() as group:
            # By the node, which also ends the condition.
            admit = functools.partial(cluster.request, "POST", f"{path}/binding", binding)
            group.start_soon(anyio.to_thread.run_sync, admit)
            stream = await Start(api, watch, "pod", connect, _nothing, seconds=60).stream()
            await stream.send(b"admitted")
            assert await stream.receive() == b"admitted"
            await stream.aclose()
        await remove(cluster, namespace, "pod")
