"""How a cluster is found, and who we are there."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from aiohttp import web

from sandboxkit.errors import (
    AuthenticationError,
    ConfigurationError,
    SandboxError,
)
from sandboxkit.providers.kubernetes import _access, _login
from sandboxkit.providers.kubernetes._access import read_access
from sandboxkit.providers.kubernetes._api import Api
from tests.kubernetes.answers import answering, kubeconfig, status
from tests.kubernetes.cluster import STATE, Cluster, wait_until
from tests.kubernetes.here import PROGRAMS

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(cluster: Cluster) -> Path:
    """The folder with the kubeconfigs that scripts/kube.sh writes."""
    if not cluster.is_of_script:
        pytest.skip("only scripts/kube.sh makes a kubeconfig with a certificate")
    return STATE


async def _list(api: Api) -> Any:
    return await api.call("GET", await api.path("pods"), what="list pods")


async def test_the_environment_names_the_kubeconfig(cluster: Cluster) -> None:
    api = Api(namespace="kube-system")
    assert (await _list(api))["kind"] == "PodList"
    assert (api.server, api.namespace) == (cluster.server, "kube-system")
    await api.aclose()


async def test_keys_in_a_kubeconfig_are_nowhere_else_afterwards(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        api = Api(kubeconfig=str(folder / "kubeconfig-certificate"))
        assert (await _list(api))["kind"] == "PodList"
        assert api.namespace == "default"
        await api.aclose()
        assert not list(tmp_path.iterdir())
    assert len(os.listdir("/proc/self/fd")) <= open_before


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({}, None),
        ({"token": "t"}, "Bearer t"),
        ({"tokenFile": "token"}, "Bearer stored"),
        ({"token": "t", "tokenFile": "token"}, "Bearer t"),
        ({"username": "me", "password": "p"}, "Basic bWU6cA=="),
        ({"auth-provider": {"name": "oidc", "config": {"id-token": "i"}}}, "Bearer i"),
        ({"auth-provider": {"name": "gcp", "config": {"access-token": "a"}}}, "Bearer a"),
    ],
)
async def test_a_users_credentials_become_a_header(
    tmp_path: Path, user: dict[str, Any], header: str | None
) -> None:
    (tmp_path / "token").write_text("stored\n")
    access = await read_access(str(kubeconfig(tmp_path, "http://127.0.0.1:1/", **user)), None)
    assert (access.server, access.namespace) == ("http://127.0.0.1:1", "here")
    assert access.headers().get("Authorization") == header


async def test_of_several_kubeconfigs_the_first_one_counts(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first = kubeconfig(tmp_path, "http://first", tokenFile="missing")
    second = kubeconfig(tmp_path / "other", "http://second", token="t")
    access = await read_access(f"{first}:{tmp_path / 'nosuch'}:{second}", "test")
    assert access.server == "http://first"
    with pytest.raises(ConfigurationError, match=str(tmp_path / "missing")):
        access.headers()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "current-context: other",
        "clusters: 3\ncurrent-context: x\ncontexts: []",
    ],
)
async def test_an_invalid_kubeconfig_is_reported(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="cannot be used") as caught:
        await Api(kubeconfig=str(path)).open()
    assert str(path) in str(caught.value)


async def test_a_missing_context_or_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kubeconfig(tmp_path, "https://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="other"):
        await Api(kubeconfig=str(path), context="other").open()
    with pytest.raises(ConfigurationError, match="no kubeconfig at"):
        await Api(kubeconfig=str(tmp_path / "nosuch")).open()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nosuch"))
    with pytest.raises(ConfigurationError, match="no kubeconfig at"):
        await Api().open()
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="no cluster to use"):
        await Api().open()


async def test_an_untrusted_certificate_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    api = Api(kubeconfig=str(kubeconfig(tmp_path, cluster.server, token=cluster.token)))
    with pytest.raises(ConfigurationError, match="not trusted"):
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
        with pytest.raises(AuthenticationError, match="log in"):
            await _list(api)
        assert api.namespace == namespace
        (tmp_path / "token").write_text(
            made["status"]["token"]
        )  # as a kubelet does, before the old one expires
        with pytest.raises(AuthenticationError, match="cannot list resource") as caught:
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
        with pytest.raises(AuthenticationError):
            await _list(api)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("import sys; sys.exit('no such account')", AuthenticationError),
        ("print('{')", ConfigurationError),
        ("print('{}')", ConfigurationError),
        ("import time; time.sleep(30)", AuthenticationError),
    ],
)
async def test_a_failed_login_program_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, kind: type[SandboxError]
) -> None:
    monkeypatch.setattr(_login, "_SECONDS", 3.0)
    path = kubeconfig(tmp_path, "https://127.0.0.1:1", **_user(tmp_path, script))
    with pytest.raises(kind) as caught:
        await Api(kubeconfig=str(path)).open()
    assert ("no such account" in str(caught.value)) == ("account" in script)
