"""The watch: what it tells of pods, on a real cluster through its restarts, and of odd answers."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from sandboxkit.errors import AuthenticationError, ProviderUnavailableError, SandboxNotFoundError
from sandboxkit.providers.kubernetes import _api, _ends
from sandboxkit.providers.kubernetes._watch import PodWatch
from tests.kubernetes.answers import Answers, answering, status
from tests.kubernetes.bare import LABEL, connected, create, remove, running
from tests.kubernetes.cluster import Cluster

pytestmark = pytest.mark.anyio


async def test_a_pod_is_followed_until_gone_or_forgotten(cluster: Cluster, namespace: str) -> None:
    async with connected(cluster, namespace) as (_, watch):
        other, answer = await create(cluster, namespace)
        with pytest.raises(TimeoutError):
            await watch.until("nosuch", lambda seen: True, seconds=0.5)
        async with running(cluster, namespace, watch) as pod:
            seen = watch.last(pod)
            assert seen is not None
            assert seen.pod["status"]["phase"] == "Running"
            assert "managedFields" not in seen.pod["metadata"]
            with pytest.raises(TimeoutError):
                await watch.until(pod, lambda seen: False, seconds=0.5)
        seen = await watch.until(pod, lambda seen: seen.gone, seconds=60)
        assert watch.last(pod) is seen
        assert seen.pod["status"]["phase"] == "Running"
        with pytest.raises(SandboxNotFoundError):
            await watch.until(pod, lambda seen: False, seconds=60)
        assert watch.last(other) is None  # nobody follows it
        watch.follow(other, answer)

        async def wait() -> None:
            with pytest.raises(SandboxNotFoundError):
                await watch.until(other, lambda seen: False, seconds=60)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            watch.forget(other)
        assert watch.last(other) is None
        await remove(cluster, namespace, other)


async def test_a_pod_that_is_there_already_is_found_also_after_closing(
    cluster: Cluster, namespace: str
) -> None:
    pod, _ = await create(cluster, namespace)
    async with connected(cluster, namespace) as (_, watch):
        await watch.until(pod, _ends.is_running, seconds=60)
        others = asyncio.all_tasks()
        await watch.aclose()
        assert len(others - asyncio.all_tasks()) == 1
        assert watch.last(pod) is None
        await watch.aclose()
        await watch.until(pod, _ends.is_running, seconds=60)  # and it can begin anew
        later, answer = await create(cluster, namespace)
        await anyio.sleep(1)  # its first events come, and nobody follows it yet
        watch.follow(later, answer)
        await remove(cluster, namespace, later, grace=1)
        await watch.until(later, _ends.has_ended, seconds=60)
        for name in (pod, later):
            await remove(cluster, namespace, name)
            await watch.until(name, lambda seen: seen.gone, seconds=60)


async def test_a_missing_right_to_watch_is_reported_at_once(user: Cluster, namespace: str) -> None:
    async with connected(user, namespace) as (_, watch):
        with anyio.fail_after(30), pytest.raises(AuthenticationError, match=r'verbs: \["list"\]'):
            await watch.until("pod", lambda seen: True, seconds=60)


@pytest.mark.timeout(300)
async def test_nothing_is_missed_while_the_api_server_is_away(
    own_cluster: Cluster, namespace: str
) -> None:
    ending = {"command": ["sh", "-c", "sleep 4; exit 9"]}
    async with connected(own_cluster, namespace) as (_, watch):
        async with (
            running(own_cluster, namespace, watch) as stays,
            running(own_cluster, namespace, watch, ending) as ends,
        ):
            with own_cluster.without("api"), pytest.raises(ProviderUnavailableError):
                await watch.until(ends, _ends.has_ended, seconds=5)
            # On a busy machine the server takes its time to be back.
            seen = await watch.until(ends, _ends.has_ended, seconds=150)
            (container,) = seen.pod["status"]["containerStatuses"]
            assert container["state"]["terminated"]["exitCode"] == 9
            still = watch.last(stays)
            assert still is not None
            assert _ends.is_running(still)
        for name in (stays, ends):
            await watch.until(name, lambda seen: seen.gone, seconds=60)


def _pod(version: int, name: str = "pod", **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": str(version), "managedFields": [1]}
    status = {"phase": "Running"} | status
    return {"kind": "Pod", "metadata": metadata, "spec": {}, "status": status}


def _listed(version: int, *pods: dict[str, Any]) -> web.Response:
    return web.json_response({"metadata": {"resourceVersion": str(version)}, "items": list(pods)})


CUT, STAY = "cut", "stay"
# Any: an event's object is JSON.
Step = tuple[str, dict[str, Any]] | bytes | str
"""An event, other bytes, or how the connection ends: broken, or not at all."""


@asynccontextmanager
async def scripted(
    folder: Path,
    *watches: Sequence[Step] | web.Response,
    lists: Callable[[str], web.Response] = lambda limit: _listed(10),
) -> AsyncIterator[tuple[Answers, PodWatch]]:
    """A watch of a server that does these steps for one request to watch after the other, and the last ones
    for all others. `lists` gets a list's limit."""
    left = list(watches)

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return lists(request.query["limit"])
        steps = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(steps, web.Response):
            return steps
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        for step in steps:
            if step == STAY:
                await anyio.sleep_forever()
            elif step == CUT:
                assert request.transport is not None
                request.transport.abort()
            else:
                line = step if isinstance(step, bytes) else _line(step)
                for at in range(0, len(line), 50_000):
                    await stream.write(line[at : at + 50_000])
        return stream

    async with answering(answer, folder) as (answers, api):
        watch = PodWatch(api, selector=f"{LABEL}=1")
        yield answers, watch
        await watch.aclose()


def _line(step: Any) -> bytes:
    return json.dumps({"type": step[0], "object": step[1]}).encode() + b"\n"


async def test_a_broken_watch_resumes_at_the_last_bookmark(tmp_path: Path) -> None:
    bookmark = ("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "17"}})
    async with scripted(
        tmp_path,
        [("ADDED", _pod(11)), bookmark, _line(bookmark)[:30], CUT],
        [("MODIFIED", _pod(18, message="x" * 300_000))],  # ended by the server
        [("DELETED", _pod(19)), STAY],
    ) as (answers, watch):
        seen = await watch.until("pod", lambda seen: seen.gone, seconds=60)
    assert seen.pod["metadata"]["resourceVersion"] == "19"
    versions = [asked["resourceVersion"] for asked in answers.asked if "watch" in asked]
    assert versions == ["10", "17", "18"]
    assert all(asked["labelSelector"] == f"{LABEL}=1" for asked in answers.asked)


_TOO_OLD = "too old resource version: 11 (50)"


@pytest.mark.parametrize(
    "refused",
    [
        [("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": _TOO_OLD})],
        status(410, "Expired", _TOO_OLD),
    ],
    ids=["an event", "an answer"],
)
async def test_too_old_a_version_makes_it_list_again(
    tmp_path: Path, refused: list[Step] | web.Response
) -> None:
    def lists(limit: str) -> web.Response:
        if not any("watch" in asked for asked in answers.asked):
            return _listed(10)
        return _listed(50) if limit == "1" else _listed(50, _pod(44, "stays"), _pod(45, "unknown"))

    async with scripted(
        tmp_path,
        [("ADDED", _pod(11, "goes")), ("ADDED", _pod(11, "stays"))],
        refused,
        # The first one is older than the list.
        [("MODIFIED", _pod(30, "stays", phase="Pending")), ("ADDED", _pod(51, "new")), STAY],
        lists=lists,
    ) as (answers, watch):
        for name in ("goes", "unseen", "new"):
            watch.follow(name)
        await watch.until("stays", lambda seen: True, seconds=60)
        gone = await watch.until("goes", lambda seen: seen.gone, seconds=60)
        assert gone.pod["metadata"]["resourceVersion"] == "11"  # the last that was seen of it
        await watch.until("new", lambda seen: True, seconds=60)
        stays = watch.last("stays")
        assert stays is not None
        assert (stays.pod["metadata"]["resourceVersion"], stays.gone) == ("44", False)
        assert watch.last("unseen") is None  # it may be created yet
        assert watch.last("unknown") is None
    assert answers.asked[-1]["resourceVersion"] == "50"


async def test_the_end_of_a_pod_during_a_listing_is_reported(tmp_path: Path) -> None:
    evicted = _pod(52, reason="Evicted", message="The node was low on resource: memory.")
    async with scripted(
        tmp_path,
        [("DELETED", evicted), STAY],
        lists=lambda limit: _listed(50 if limit == "1" else 60),
    ) as (_, watch):
        watch.follow("pod", _pod(40))
        seen = await watch.until("pod", lambda seen: "reason" in seen.pod["status"], seconds=60)
    assert "low on resource" in str(_ends.end_error(seen, sandbox_id="pod"))


@pytest.mark.parametrize(
    "odd",
    [[STAY], [b"{half\n"], [b"[]\n"], [b'{"type":"ADDED","object":{}}\n'], [b"\n"]],
    ids=["silence", "half", "a list", "nothing", "a line"],
)
async def test_useless_connections_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: list[Step]
) -> None:
    monkeypatch.setattr(_api, "_WATCH_SILENCE", 0.3)
    async with scripted(tmp_path, odd, odd, [("ADDED", _pod(11)), STAY]) as (_, watch):
        await watch.until("pod", lambda seen: True, seconds=60)


async def test_a_server_that_is_busy_is_asked_less_and_less(tmp_path: Path) -> None:
    starting = status(503, "ServiceUnavailable", "apiserver is starting")
    async with scripted(tmp_path, [], lists=lambda limit: copy.copy(starting)) as (answers, watch):
        with pytest.raises(ProviderUnavailableError, match="is starting"):
            await watch.until("pod", lambda seen: True, seconds=3)
        assert 2 < len(answers.asked) < 12


async def test_a_second_deletion_by_the_node_does_not_replace_the_first(tmp_path: Path) -> None:
    """A newer kubelet deletes a pod again when its containers have ended (seen with 1.36)."""

    def at(second: int) -> str:
        return f"2026-01-01T00:00:{second:02d}Z"

    killed = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": at(11)}
    ended = [{"name": "sandbox", "state": {"terminated": killed}}]
    asked, again = _pod(12), _pod(13, containerStatuses=ended)
    asked["metadata"] |= {"deletionTimestamp": at(11), "deletionGracePeriodSeconds": 1}
    again["metadata"] |= {"deletionTimestamp": at(15), "deletionGracePeriodSeconds": 0}
    events: list[Step] = [("ADDED", _pod(11)), ("MODIFIED", asked), ("DELETED", again), STAY]
    async with scripted(tmp_path, events) as (_, watch):
        watch.follow("pod")
        seen = await watch.until("pod", lambda seen: seen.gone, seconds=60)
    assert not _ends.end_error(seen, sandbox_id="pod").out_of_memory
