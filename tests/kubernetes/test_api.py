"""Calls of the API server: what it refuses, its lists, and when it says nothing."""

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from aiohttp import web

from sandboxkit.errors import (
    AuthenticationError,
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
)
from sandboxkit.providers.kubernetes import _api
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._errors import refusal_of
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


async def test_a_missing_right_is_named_with_the_rule_to_add(
    cluster: Cluster, user: Cluster, namespace: str
) -> None:
    calls: dict[str, Callable[[Api], Any]] = {
        "list": lambda api: _list(api),
        "create": lambda api: api.exec("nosuch", "sandbox", ["true"], sandbox_id="nosuch"),
        "watch": _watched,
    }
    base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    rules: list[str] = []
    message = ""
    async with connected(user, namespace) as (api, _):
        for call in calls.values():
            with pytest.raises(AuthenticationError) as caught:
                await call(api)
            message = str(caught.value)
            assert f"a Role in namespace '{namespace}'" in message
            rules.append(message[message.index("{apiGroups") : message.index("} to ") + 1])
        assert 'resources: ["pods/exec"]' in rules[1]
        name = message[message.index("bound to '") + 10 :].partition("'")[0]
        granted = [_rule(each) for each in rules]
        # A WebSocket begins with a GET, which older servers take for the verb.
        granted.append({"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]})
        role = {"metadata": {"name": "r"}, "rules": granted}
        subject = {"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
        reference = {"kind": "Role", "name": "r", "apiGroup": "rbac.authorization.k8s.io"}
        binding = {"metadata": {"name": "b"}, "subjects": [subject], "roleRef": reference}
        cluster.request("POST", f"{base}/roles", role)
        cluster.request("POST", f"{base}/rolebindings", binding)
        with anyio.fail_after(30):
            while True:
                try:
                    await _list(api)
                    break
                except AuthenticationError:
                    await anyio.sleep(0.1)
        await _watched(api)
        with pytest.raises(SandboxNotFoundError):
            await calls["create"](api)


async def _watched(api: Api) -> None:
    async with api.watch(await api.path("pods"), "0"):
        pass


def _rule(message: str) -> dict[str, list[str]]:
    for key in ("apiGroups", "resources", "verbs"):
        message = message.replace(key, f'"{key}"')
    rule: dict[str, list[str]] = json.loads(message)
    return rule


async def test_missing_and_invalid_objects_are_reported(cluster: Cluster, namespace: str) -> None:
    async with connected(cluster, namespace) as (api, _):
        pods = await api.path("pods")
        with pytest.raises(SandboxNotFoundError, match="no sandbox 'x'"):
            await api.call("GET", f"{pods}/x", what="describe a sandbox", sandbox_id="x")
        with pytest.raises(ConfigurationError, match="Invalid value"):
            await api.call("POST", pods, manifest("No_Name"), what="create a sandbox")
        body = manifest("pod", runtimeClassName="nosuch")
        with pytest.raises(ConfigurationError, match="RuntimeClass"):
            await api.call("POST", pods, body, what="create a sandbox")
        body = manifest("pod", serviceAccountName="nosuch")
        with pytest.raises(ConfigurationError, match="name a service account"):
            await api.call("POST", pods, body, what="create a sandbox")
        with pytest.raises(ProviderUnavailableError, match="API server"):
            await api.call("GET", "/nosuch", what="ask")
        there = {"metadata": {"name": "kube-root-ca.crt"}}
        with pytest.raises(ProviderUnavailableError) as caught:
            await api.call("POST", await api.path("configmaps"), there, what="store the agent")
        refusal = refusal_of(caught.value)
        assert refusal is not None
        assert (refusal.status, refusal.reason) == (409, "AlreadyExists")
    async with connected(cluster, "nosuch") as (api, _):
        pods, body = await api.path("pods"), manifest("pod")
        with pytest.raises(ConfigurationError, match="create the namespace"):
            await api.call("POST", pods, body, what="create a sandbox", sandbox_id="pod")


async def test_a_namespace_under_deletion_is_refused(cluster: Cluster) -> None:
    name = "test-leaving"
    path = f"/api/v1/namespaces/{name}"
    cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    held = {"metadata": {"name": "held", "finalizers": ["sandboxkit.dev/test"]}}
    cluster.request("POST", f"{path}/configmaps", held)
    cluster.request("DELETE", path)
    try:
        async with connected(cluster, name) as (api, _):
            pods, body = await api.path("pods"), manifest("pod")
            with pytest.raises(ConfigurationError, match="use another"):
                await api.call("POST", pods, body, what="create a sandbox")
    finally:
        patch = {"metadata": {"finalizers": None}}
        merge = "application/merge-patch+json"
        cluster.request("PATCH", f"{path}/configmaps/held", patch, content=merge)


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


async def _refused(
    tmp_path: Path, answer: Callable[[], web.StreamResponse], **more: Any
) -> SandboxError:
    async def says(request: web.Request) -> web.StreamResponse:
        return answer()

    async with answering(says, tmp_path) as (_, api):
        try:
            await api.call("GET", "/x", what="list pods", **more)
        except SandboxError as error:
            return error
        raise AssertionError("it was not refused")


def _same(answer: web.Response) -> web.Response:
    return answer


async def test_a_busy_server_sets_retry_after(tmp_path: Path) -> None:
    def busy(header: str | None, **more: Any) -> web.Response:
        answer = status(429, "TooManyRequests", "please try again later", **more)
        if header is not None:
            answer.headers["Retry-After"] = header
        return answer

    for answer, seconds in (
        (busy("7"), 7),
        (busy("Wed, 21 Oct 2015 07:28:00 GMT"), None),
        (busy("-1"), None),
        (busy(None, details={"retryAfterSeconds": 3}), 3),
    ):
        error = await _refused(tmp_path, functools.partial(_same, answer))
        assert type(error) is ProviderUnavailableError
        assert error.retry_after == seconds


@pytest.mark.parametrize("code", [500, 502, 503, 504, 408])
async def test_a_server_error_is_retryable(tmp_path: Path, code: int) -> None:
    page = "<html>" + "x" * 5000
    error = await _refused(tmp_path, lambda: web.Response(status=code, text=page))
    assert type(error) is ProviderUnavailableError
    assert str(code) in str(error)
    assert len(str(error)) < 1000


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.Response(text="<html>log in</html>"),
        lambda: web.Response(body=b"\xff\xfe"),
        lambda: web.Response(text="{"),
    ],
)
async def test_an_answer_of_another_server_is_reported(
    tmp_path: Path, answer: Callable[[], web.Response]
) -> None:
    error = await _refused(tmp_path, answer)
    assert "not a Kubernetes API response" in str(error)


async def test_a_login_page_is_reported(tmp_path: Path) -> None:
    away = {"Location": "/login"}
    error = await _refused(tmp_path, lambda: web.Response(status=302, headers=away))
    assert type(error) is ConfigurationError


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


async def test_a_frozen_or_missing_api_server_fails_calls_in_time(
    own_cluster: Cluster,
) -> None:
    api = Api(kubeconfig=str(own_cluster.kubeconfig), timeout=2)
    fresh = Api(kubeconfig=str(own_cluster.kubeconfig), timeout=2)
    try:
        await _list(api)
        with own_cluster.frozen("api"), anyio.fail_after(30):
            for each in (api, fresh):
                with pytest.raises(ProviderUnavailableError, match="in time"):
                    await _list(each)
        await _list(api)
        with own_cluster.without("api"), anyio.fail_after(60):
            for each in (api, fresh):
                with pytest.raises(ProviderUnavailableError):
                    await _list(each)
        await _list(api)
        await _list(fresh)
    finally:
        await api.aclose()
        await fresh.aclose()
