"""How a cluster is found and who we are there; calls of the API server, what it refuses, and its silence."""

import os
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from aiohttp import web

from sandboxkit import errors
from sandboxkit.providers.kubernetes import _access, _api
from sandboxkit.providers.kubernetes._access import read_access
from sandboxkit.providers.kubernetes._api import Api
from tests.kubernetes.answers import answering, kubeconfig, status
from tests.kubernetes.bare import connected, manifest
from tests.kubernetes.cluster import STATE, Cluster, wait_until
from tests.kubernetes.here import PROGRAMS

pytestmark = pytest.mark.anyio


async def _list(api: Api) -> Any:
    return await api.call("GET", await api.path("pods"), what="list pods")


async def test_closing_leaves_no_connection_and_a_call_opens_another(cluster: Cluster) -> None:
    api = Api(namespace="kube-system")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(_list, api)
        assert (api.server, api.namespace) == (cluster.server, "kube-system")
        assert len(os.listdir("/proc/self/fd")) > before
        await api.aclose()
        assert len(os.listdir("/proc/self/fd")) <= before
        await api.aclose()


_NO_CLASS = manifest("pod", runtimeClassName="nosuch")
_NO_ACCOUNT = manifest("pod", serviceAccountName="nosuch")
_THERE = {"metadata": {"name": "kube-root-ca.crt"}}
# Any: JSON.
_REFUSED: dict[str, tuple[str, Any, type[errors.SandboxError], str]] = {
    "missing": ("GET pods/x", None, errors.SandboxNotFoundError, "no sandbox 'x'"),
    "name": ("POST pods", manifest("No_Name"), errors.ConfigurationError, "Invalid value"),
    "runtime class": ("POST pods", _NO_CLASS, errors.ConfigurationError, "RuntimeClass"),
    "account": ("POST pods", _NO_ACCOUNT, errors.ConfigurationError, "name a service account"),
    "path": ("GET /nosuch", None, errors.ProviderUnavailableError, "API server"),
    "there already": ("POST configmaps", _THERE, errors.ProviderUnavailableError, "already exists"),
    "namespace": ("POST pods", manifest("pod"), errors.ConfigurationError, "create the namespace"),
}


@pytest.mark.parametrize("name", _REFUSED)
async def test_what_the_server_refuses_is_reported(cluster: Cluster, name: str) -> None:
    call, body, raised, words = _REFUSED[name]
    method, resource = call.split()
    async with connected(cluster, "nosuch" if name == "namespace" else "default") as (api, _):
        path = resource if resource[0] == "/" else await api.path(resource)
        with pytest.raises(raised, match=words) as caught:
            await api.call(method, path, body, what="ask", sandbox_id="x")
    assert type(caught.value) is raised


async def test_pages_have_no_duplicates(
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

    too_old = "The provided continue parameter is too old"
    pages = [
        page("ab", "first"),
        status(410, "Expired", too_old, metadata={"continue": token}),
        page("cd", "") if token else page("abcd", ""),
    ]

    async def answer(request: web.Request) -> web.StreamResponse:
        return pages.pop(0)

    async with answering(answer, tmp_path) as (answers, api):
        path = await api.path("pods")
        found = [item["metadata"]["name"] async for item in api.pages(path, what="list pods")]
    assert found == list("abcd")
    places = [asked.get("continue") for asked in answers.asked]
    assert places == [None, "first", token or None]


@pytest.mark.parametrize("sent", [b"<html>log in</html>", b"\xff\xfe", b"{", "half", "cut", "none"])
async def test_what_is_no_answer_is_reported_in_time(tmp_path: Path, sent: bytes | str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if isinstance(sent, bytes):
            return web.Response(body=sent)
        part = web.StreamResponse(headers={"Content-Length": "100"})
        if sent != "none":
            await part.prepare(request)
            await part.write(b"{")
        if sent == "cut" and request.transport is not None:
            request.transport.abort()
            return part
        await anyio.sleep_forever()
        raise AssertionError

    words = {"cut": "no answer", "half": "in time", "none": "in time"}
    kind = errors.SandboxError if isinstance(sent, bytes) else errors.ProviderUnavailableError
    async with answering(answer, tmp_path, timeout=60) as (_, api):
        match = words.get(str(sent), "not a Kubernetes API response")
        with anyio.fail_after(30), pytest.raises(kind, match=match):
            await api.call("GET", "/x", what="list pods", seconds=0.3 if match == "in time" else 30)


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


async def test_keys_in_a_kubeconfig_are_nowhere_else_afterwards(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not cluster.is_of_script:
        pytest.skip("only scripts/kube.sh makes a kubeconfig with a certificate")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        api = Api(kubeconfig=str(STATE / "kubeconfig-certificate"))
        assert (await _list(api))["kind"] == "PodList"
        assert api.namespace == "default"
        await api.aclose()
        assert not list(tmp_path.iterdir())
    assert len(os.listdir("/proc/self/fd")) <= open_before


_USERS = tomllib.loads(Path(__file__).with_name("users.toml").read_text())["users"]


@pytest.mark.parametrize("case", _USERS, ids=lambda case: str(case["user"]))
async def test_credentials_become_a_header(tmp_path: Path, case: dict[str, Any]) -> None:
    (tmp_path / "token").write_text("stored\n")
    access = await read_access(
        str(kubeconfig(tmp_path, "http://127.0.0.1:1/", **case["user"])), None
    )
    assert (access.server, access.namespace) == ("http://127.0.0.1:1", "here")
    assert access.headers().get("Authorization") == case.get("header")


async def test_of_several_kubeconfigs_the_first_one_counts(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first = kubeconfig(tmp_path, "http://first", tokenFile="missing")
    second = kubeconfig(tmp_path / "other", "http://second", token="t")
    access = await read_access(f"{first}:{tmp_path / 'nosuch'}:{second}", "test")
    assert access.server == "http://first"
    with pytest.raises(errors.ConfigurationError, match=str(tmp_path / "missing")):
        access.headers()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", "current-context: other", "clusters: 3\ncurrent-context: x\ncontexts: []"],
)
async def test_an_invalid_kubeconfig_is_reported(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(errors.ConfigurationError, match="cannot be used") as caught:
        await Api(kubeconfig=str(path)).open()
    assert str(path) in str(caught.value)


async def test_missing_contexts_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, missing = str(kubeconfig(tmp_path, "https://127.0.0.1:1")), str(tmp_path / "nosuch")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("", {"kubeconfig": path, "context": "other"}, "other"),
        ("", {"kubeconfig": missing}, "no kubeconfig at"),
        (missing, {}, "no kubeconfig at"),
        ("", {}, "no cluster to use"),
    ]
    for variable, options, words in cases:
        monkeypatch.setenv("KUBECONFIG", variable)
        with pytest.raises(errors.ConfigurationError, match=words):
            await Api(**options).open()


async def test_an_untrusted_certificate_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    api = Api(kubeconfig=str(kubeconfig(tmp_path, cluster.server, token=cluster.token)))
    with pytest.raises(errors.ConfigurationError, match="not trusted"):
        await _list(api)
    await api.aclose()


async def test_in_a_pod_the_service_account_is_used(
    cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/api/v1/namespaces/{namespace}"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    made = cluster.request("POST", f"{path}/serviceaccounts/default/token", body)
    wait_until(lambda: bool(cluster.request("GET", f"{path}/configmaps")["items"]), "the authority")
    authority = cluster.request("GET", f"{path}/configmaps/kube-root-ca.crt")["data"]["ca.crt"]
    for name, text in (("token", "stale"), ("ca.crt", authority), ("namespace", namespace)):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(_access, "_ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", cluster.server.removeprefix("https://"))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    api = Api()
    try:
        with pytest.raises(errors.AuthenticationError, match="log in"):
            await _list(api)
        assert api.namespace == namespace
        # As a kubelet does, before the old one expires.
        (tmp_path / "token").write_text(made["status"]["token"])
        with pytest.raises(errors.AuthenticationError, match="cannot list resource") as caught:
            await _list(api)
        assert f"system:serviceaccount:{namespace}:default" in str(caught.value)
    finally:
        await api.aclose()


def _user(folder: Path, script: str) -> dict[str, Any]:
    """A kubeconfig's user whose token a program says."""
    program = folder / "login"
    program.write_text(f"#!{sys.executable}\n{script}")
    program.chmod(0o755)
    version = "client.authentication.k8s.io/v1beta1"
    return {"exec": {"apiVersion": version, "command": str(program)}}


async def test_a_login_program_runs_again_when_its_token_has_expired(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    valid = {"Bearer token-1"}

    async def answer(request: web.Request) -> web.StreamResponse:
        await anyio.sleep(0.05)
        if request.headers["Authorization"] not in valid:
            return status(401, "Unauthorized", "Unauthorized")
        return web.json_response({"kind": "PodList"})

    user = _user(tmp_path, PROGRAMS["access"]["login"].replace("RUNS", str(runs)))
    async with answering(answer, tmp_path, **user) as (_, api):
        await _list(api)
        await _list(api)
        assert runs.read_text() == "x"
        valid = {"Bearer token-2"}
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(_list, api)
        assert runs.read_text() == "xx"  # once for all who needed it
        valid = set()
        with pytest.raises(errors.AuthenticationError):
            await _list(api)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("import sys; sys.exit('no such account')", errors.AuthenticationError),
        ("print('{')", errors.ConfigurationError),
        ("print('{}')", errors.ConfigurationError),
        ("import time; time.sleep(30)", errors.AuthenticationError),
    ],
)
async def test_a_failed_login_program_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, kind: type[errors.SandboxError]
) -> None:
    monkeypatch.setattr(_access, "_SECONDS", 3.0)
    path = kubeconfig(tmp_path, "https://127.0.0.1:1", **_user(tmp_path, script))
    with pytest.raises(kind) as caught:
        await Api(kubeconfig=str(path)).open()
    assert ("no such account" in str(caught.value)) == ("account" in script)
