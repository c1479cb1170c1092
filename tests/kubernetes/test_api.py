"""Calls of the API server: what it refuses, its lists, and when it says nothing."""

import os
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from aiohttp import web

from sandboxkit.errors import (
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
)
from sandboxkit.providers.kubernetes import _api
from sandboxkit.providers.kubernetes._api import Api
from tests.kubernetes.answers import answering, status
from tests.kubernetes.bare import connected, manifest
from tests.kubernetes.cluster import Cluster

pytestmark = pytest.mark.anyio


async def _list(api: Api, resource: str = "pods") -> Any:
    return await api.call("GET", await api.path(resource), what=f"list {resource}")


async def test_closing_leaves_no_connection_and_the_next_call_opens_another(
    cluster: Cluster,
) -> None:
    api = Api()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(_list, api)
        assert len(os.listdir("/proc/self/fd")) > before
        await api.aclose()
        assert len(os.listdir("/proc/self/fd")) <= before
        await api.aclose()


@pytest.mark.parametrize(
    ("method", "resource", "body", "raised", "words"),
    [
        ("GET", "pods/x", None, SandboxNotFoundError, "no sandbox 'x'"),
        ("POST", "pods", manifest("No_Name"), ConfigurationError, "Invalid value"),
        (
            "POST",
            "pods",
            manifest("pod", runtimeClassName="nosuch"),
            ConfigurationError,
            "RuntimeClass",
        ),
        (
            "POST",
            "pods",
            manifest("pod", serviceAccountName="nosuch"),
            ConfigurationError,
            "name a service account",
        ),
        ("GET", "/nosuch", None, ProviderUnavailableError, "API server"),
        (
            "POST",
            "configmaps",
            {"metadata": {"name": "kube-root-ca.crt"}},
            ProviderUnavailableError,
            "already exists",
        ),
    ],
    ids=["missing", "name", "runtime class", "account", "path", "there already"],
)
async def test_what_the_server_refuses_is_reported(
    cluster: Cluster,
    method: str,
    resource: str,
    body: Any,
    raised: type[SandboxError],
    words: str,
) -> None:
    async with connected(cluster, "default") as (api, _):
        path = resource if resource[0] == "/" else await api.path(resource)
        with pytest.raises(raised, match=words) as caught:
            await api.call(method, path, body, what="ask", sandbox_id="x")
    assert type(caught.value) is raised


async def test_a_namespace_that_does_not_exist_is_reported(cluster: Cluster) -> None:
    async with connected(cluster, "nosuch") as (api, _):
        pods, body = await api.path("pods"), manifest("pod")
        with pytest.raises(ConfigurationError, match="create the namespace"):
            await api.call("POST", pods, body, what="create a sandbox", sandbox_id="pod")


async def test_a_paged_list_has_no_duplicates(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_api, "_PAGE", 3)
    async with connected(cluster, namespace) as (api, _):
        path = await api.path("configmaps")
        names = [f"c{number}" for number in range(8)]
        for name in names:
            body = {"metadata": {"name": name, "labels": {"x": "1"}}}
            await api.call("POST", path, body, what="store")
        try:
            found = []
            params = {"labelSelector": "x=1"}
            async for item in api.pages(path, what="list", params=params):
                found.append(item["metadata"]["name"])
            assert found == names
        finally:
            query = {"labelSelector": "x=1"}
            await api.call("DELETE", path, what="remove", params=query)


@pytest.mark.parametrize("token", ["later", ""])
async def test_an_expired_list_continues(tmp_path: Path, token: str) -> None:
    def page(names: str, place: str) -> web.Response:
        items = [{"metadata": {"name": name}} for name in names]
        return web.json_response({"metadata": {"continue": place}, "items": items})

    async def answer(request: web.Request) -> web.StreamResponse:
        match request.query.get("continue"):
            case None:
                return page("ab", "first") if len(answers.asked) == 1 else page("abcd", "")
            case "first":
                more = {"metadata": {"continue": token}}
                return status(410, "Expired", "The provided continue parameter is too old", **more)
            case _:
                return page("cd", "")

    async with answering(answer, tmp_path) as (answers, api):
        path = await api.path("pods")
        found = [item["metadata"]["name"] async for item in api.pages(path, what="list pods")]
    assert found == list("abcd")


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"\xff\xfe", b"{"])
async def test_an_answer_of_another_server_is_reported(tmp_path: Path, body: bytes) -> None:
    async def says(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body)

    async with answering(says, tmp_path) as (_, api):
        with pytest.raises(SandboxError, match="not a Kubernetes API response"):
            await _list(api)


async def test_a_truncated_answer_is_retryable(tmp_path: Path) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "100"})
        await answer.prepare(request)
        await answer.write(b"{")
        assert request.transport is not None
        request.transport.abort()
        return answer

    async with answering(cut, tmp_path) as (_, api):
        with pytest.raises(ProviderUnavailableError, match="no answer"):
            await _list(api)


async def test_an_answer_has_a_time_limit(tmp_path: Path) -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        if request.query.get("half"):
            answer = web.StreamResponse(headers={"Content-Length": "100"})
            await answer.prepare(request)
            await answer.write(b"{")
        await anyio.sleep_forever()
        raise AssertionError

    async with answering(silent, tmp_path, timeout=60) as (_, api):
        for query in ({}, {"half": "1"}):
            with anyio.fail_after(30), pytest.raises(ProviderUnavailableError, match="in time"):
                await api.call("GET", "/x", what="list pods", params=query, seconds=0.3)


async def test_concurrent_calls_are_limited(tmp_path: Path) -> None:
    now = most = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await anyio.sleep(0.02)
        now -= 1
        return web.json_response({"kind": "PodList"})

    async with answering(answer, tmp_path) as (_, api), anyio.create_task_group() as group:
        for _ in range(300):
            group.start_soon(_list, api)
    assert 8 < most <= 64
