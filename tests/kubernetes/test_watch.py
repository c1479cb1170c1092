"""The watch: what it tells of pods, on a real cluster through its restarts, and of odd answers."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from sandboxkit.errors import (
    AuthenticationError,
    ProviderUnavailableError,
    SandboxNotFoundError,
)
from sandboxkit.providers.kubernetes import _api, _ends
from sandboxkit.providers.kubernetes._watch import PodWatch
from tests.kubernetes.answers import answering, status
from tests.kubernetes.bare import (
    LABEL,
    connected,
    create,
    phase,
    remove,
    running,
)
from tests.kubernetes.cluster import Cluster

pytestmark = pytest.mark.anyio


async def test_all_states_of_a_pod_are_reported(cluster: Cluster, namespace: str) -> None:
    async with connected(cluster, namespace) as (_, watch):
        other, _ = await create(cluster, namespace)
        async with running(cluster, namespace, watch) as pod:
            seen = watch.last(pod)
            assert seen is not None
            assert phase(seen) == "Running"
            assert "managedFields" not in seen.pod["metadata"]
        seen = await watch.until(pod, lambda seen: seen.gone, seconds=60)
        assert watch.last(pod) is seen
        assert phase(seen) == "Running"
        with pytest.raises(SandboxNotFoundError):
            await watch.until(pod, lambda seen: False, seconds=60)
        assert watch.last(other) is None  # nobody follows it
        watch.forget(pod)
        assert watch.last(pod) is None
        await remove(cluster, namespace, other)


async def test_a_pod_that_is_there_already_is_found(cluster: Cluster, namespace: str) -> None:
    pod, _ = await create(cluster, namespace)
    async with connected(cluster, namespace) as (_, watch):
        await watch.until(pod, _ends.is_running, seconds=60)
        later, answer = await create(cluster, namespace)
        await anyio.sleep(1)  # its first events come, and nobody follows it yet
        watch.follow(later, answer)
        await remove(cluster, namespace, later, grace=1)
        await watch.until(later, _ends.has_ended, seconds=60)
        for name in (pod, later):
            await remove(cluster, namespace, name)
            await watch.until(name, lambda seen: seen.gone, seconds=60)


async def test_a_wait_ends_when_its_time_or_its_pod_does(cluster: Cluster, namespace: str) -> None:
    async with connected(cluster, namespace) as (_, watch):
        with pytest.raises(TimeoutError):
            await watch.until("nosuch", lambda seen: True, seconds=0.5)
        async with running(cluster, namespace, watch) as pod:
            with pytest.raises(TimeoutError):
                await watch.until(pod, lambda seen: False, seconds=0.5)
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    with pytest.raises(SandboxNotFoundError):
                        await watch.until(pod, lambda seen: False, seconds=60)

                group.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                watch.forget(pod)


async def test_a_missing_right_to_watch_is_reported_at_once(
    cluster: Cluster, user: Cluster, namespace: str
) -> None:
    async with connected(user, namespace) as (_, watch):
        with anyio.fail_after(30), pytest.raises(AuthenticationError, match=r'verbs: \["list"\]'):
            await watch.until("pod", lambda seen: True, seconds=60)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_what_happens_while_the_api_server_is_away_is_not_missed(
    own_cluster: Cluster, namespace: str, how: str
) -> None:
    async with connected(own_cluster, namespace) as (_, watch):
        async with (
            running(own_cluster, namespace, watch) as stays,
            running(
                own_cluster, namespace, watch, {"command": ["sh", "-c", "sleep 4; exit 9"]}
            ) as ends,
        ):
            if how == "kill":
                with own_cluster.without("api"), pytest.raises(ProviderUnavailableError):
                    await watch.until(ends, _ends.has_ended, seconds=5)
            else:
                with own_cluster.frozen("api"), pytest.raises(TimeoutError):
                    await watch.until(ends, _ends.has_ended, seconds=5)
            # On a busy machine the server takes its time to be back.
            seen = await watch.until(ends, _ends.has_ended, seconds=150)
            assert (
                seen.pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 9
            )
            still = watch.last(stays)
            assert still is not None
            assert _ends.is_running(still)
        for name in (stays, ends):
            await watch.until(name, lambda seen: seen.gone, seconds=60)


async def test_closing_ends_the_watch(cluster: Cluster, namespace: str) -> None:
    async with connected(cluster, namespace) as (_, watch):
        pod, _ = await create(cluster, namespace)
        await watch.until(pod, _ends.is_running, seconds=60)
        others = asyncio.all_tasks()
        await watch.aclose()
        assert len(others - asyncio.all_tasks()) == 1
        assert watch.last(pod) is None
        await watch.aclose()
        await watch.until(pod, _ends.is_running, seconds=60)  # and it can begin anew
        await remove(cluster, namespace, pod)


def _pod(version: int, name: str = "pod", **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": str(version), "managedFields": [1]}
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {},
        "status": {"phase": "Running"} | status,
    }


def _listed(version: int, *pods: dict[str, Any]) -> web.Response:
    return web.json_response({"metadata": {"resourceVersion": str(version)}, "items": list(pods)})


Say = Callable[..., Awaitable[None]]


async def _stream(request: web.Request) -> tuple[web.StreamResponse, Say]:
    answer = web.StreamResponse(headers={"Content-Type": "application/json"})
    await answer.prepare(request)

    async def say(kind: str, thing: dict[str, Any], cut: bool = False) -> None:
        line = json.dumps({"type": kind, "object": thing}).encode() + b"\n"
        for at in range(0, len(line), 50_000):
            await answer.write(line[at : at + 50_000])
        if cut:
            await answer.write(line[: len(line) // 2])
            assert request.transport is not None
            request.transport.abort()

    return answer, say


async def test_a_broken_watch_resumes_at_the_last_bookmark(tmp_path: Path) -> None:
    watches = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal watches
        if "watch" not in request.query:
            return _listed(10)
        watches += 1
        stream, say = await _stream(request)
        if watches == 1:
            await say("ADDED", _pod(11))
            bookmark = {"kind": "Pod", "metadata": {"resourceVersion": "17"}}
            await say("BOOKMARK", bookmark, cut=True)
        elif watches == 2:  # ended by the server
            await say("MODIFIED", _pod(18, message="x" * 300_000))
        else:
            await say("DELETED", _pod(19))
            await anyio.sleep_forever()
        return stream

    async with answering(answer, tmp_path) as (answers, api):
        watch = PodWatch(api, selector=f"{LABEL}=1")
        seen = await watch.until("pod", lambda seen: seen.gone, seconds=60)
        assert seen.pod["metadata"]["resourceVersion"] == "19"
        await watch.aclose()
    versions = [asked["resourceVersion"] for asked in answers.asked if "watch" in asked]
    assert versions == ["10", "17", "18"]
    assert all(asked["labelSelector"] == f"{LABEL}=1" for asked in answers.asked)


@pytest.mark.parametrize("as_event", [True, False])
async def test_a_version_that_is_too_old_makes_it_list_again(
    tmp_path: Path, as_event: bool
) -> None:
    forgotten = {
        "kind": "Status",
        "code": 410,
        "reason": "Expired",
        "message": "too old resource version: 11 (50)",
    }
    steps: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            steps.append("list")
            if "watch" not in steps:
                return _listed(10)
            if request.query["limit"] == "1":
                return _listed(50)
            return _listed(50, _pod(44, "stays"), _pod(45, "unknown"))
        steps.append("watch")
        stream_of = request.query["resourceVersion"]
        if stream_of == "11" and not as_event:
            return status(410, "Expired", str(forgotten["message"]))
        stream, say = await _stream(request)
        if stream_of == "10":
            await say("ADDED", _pod(11, "goes"))
            await say("ADDED", _pod(11, "stays"))
        elif stream_of == "11":
            await say("ERROR", forgotten)
        else:
            await say("MODIFIED", _pod(30, "stays", phase="Pending"))  # older than the list
            await say("ADDED", _pod(51, "new"))
            await anyio.sleep_forever()
        return stream

    async with answering(answer, tmp_path) as (answers, api):
        watch = PodWatch(api, selector=f"{LABEL}=1")
        watch.follow("goes")
        watch.follow("unseen")
        watch.follow("new")
        await watch.until("stays", lambda seen: True, seconds=60)
        gone = await watch.until("goes", lambda seen: seen.gone, seconds=60)
        assert gone.pod["metadata"]["resourceVersion"] == "11"  # the last that was seen of it
        await watch.until("new", lambda seen: True, seconds=60)
        stays = watch.last("stays")
        assert stays is not None
        assert (stays.pod["metadata"]["resourceVersion"], stays.gone) == ("44", False)
        assert watch.last("unseen") is None  # it may be created yet
        assert watch.last("unknown") is None
        await watch.aclose()
    assert answers.asked[-1]["resourceVersion"] == "50"


async def test_the_end_of_a_pod_during_a_listing_is_reported(tmp_path: Path) -> None:
    evicted = _pod(52, reason="Evicted", message="The node was low on resource: memory.")

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return _listed(50 if request.query["limit"] == "1" else 60)
        stream, say = await _stream(request)
        await say("DELETED", evicted)
        await anyio.sleep_forever()
        return stream

    async with answering(answer, tmp_path) as (_, api):
        watch = PodWatch(api, selector=f"{LABEL}=1")
        watch.follow("pod", _pod(40))
        seen = await watch.until("pod", lambda seen: "reason" in seen.pod["status"], seconds=60)
        assert "low on resource" in str(_ends.end_error(seen, sandbox_id="pod"))
        await watch.aclose()


async def test_a_server_that_says_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_api, "_WATCH_SILENCE", 0.3)
    watches = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal watches
        if "watch" not in request.query:
            return _listed(10)
        watches += 1
        stream, say = await _stream(request)
        if watches == 3:
            await say("ADDED", _pod(11))
        await anyio.sleep_forever()
        return stream

    async with answering(answer, tmp_path) as (_, api):
        watch = PodWatch(api, selector=f"{LABEL}=1")
        await watch.until("pod", lambda seen: True, seconds=60)
        await watch.aclose()


@pytest.mark.parametrize("odd", [b"{half\n", b"[]\n", b'{"type":"ADDED","object":{}}\n', b"\n"])
async def test_what_cannot_be_understood_does_not_end_it(tmp_path: Path, odd: bytes) -> None:
    watches = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal watches
        if "watch" not in request.query:
            return _listed(10)
        watches += 1
        stream, say = await _stream(request)
        if watches < 3:
            await stream.write(odd)
            return stream
        await say("ADDED", _pod(11))
        await anyio.sleep_forever()
        return stream

    async with answering(answer, tmp_path) as (_, api):
        watch = PodWatch(api, selector=f"{LABEL}=1")
        await watch.until("pod", lambda seen: True, seconds=60)
        await watch.aclose()


async def test_a_server_that_is_busy_is_asked_less_and_less(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return status(503, "ServiceUnavailable", "apiserver is starting")

    async with answering(answer, tmp_path) as (answers, api):
        watch = PodWatch(api, selector=f"{LABEL}=1")
        with pytest.raises(ProviderUnavailableError, match="is starting"):
            await watch.until("pod", lambda seen: True, seconds=3)
        assert 2 < len(answers.asked) < 12
        await watch.aclose()


async def test_unfollowed_pods_leave_nothing(cluster: Cluster, namespace: str) -> None:
    async with connected(cluster, namespace) as (_, watch):
        for _ in range(3):
            async with running(cluster, namespace, watch) as pod:
                pass
            watch.forget(pod)
        assert not watch._known
        assert not watch._changed


async def test_a_second_deletion_by_the_node_does_not_change_when_the_first_was_asked_for(
    tmp_path: Path,
) -> None:
    """A newer kubelet deletes a pod again when its containers have ended (seen with 1.36)."""

    def at(second: int) -> str:
        return f"2026-01-01T00:00:{second:02d}Z"

    killed = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": at(11)}
    ended = [{"name": "sandbox", "state": {"terminated": killed}}]

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return _listed(10)
        stream, say = await _stream(request)
        await say("ADDED", _pod(11))
        asked, again = _pod(12), _pod(13, containerStatuses=ended)
        asked["metadata"] |= {"deletionTimestamp": at(11), "deletionGracePeriodSeconds": 1}
        again["metadata"] |= {"deletionTimestamp": at(15), "deletionGracePeriodSeconds": 0}
        await say("MODIFIED", asked)
        await say("DELETED", again)
        await anyio.sleep_forever()
        return stream

    async with answering(answer, tmp_path) as (_, api):
        watch = PodWatch(api, selector=f"{LABEL}=1")
        watch.follow("pod")
        seen = await watch.until("pod", lambda seen: seen.gone, seconds=60)
        assert not _ends.end_error(seen, sandbox_id="pod").out_of_memory
        await watch.aclose()
