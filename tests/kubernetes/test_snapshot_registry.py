"""Snapshots in an OCI registry: logins, nodes that pull them, and what happens when it refuses or is down."""

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import anyio
import pytest
from aiohttp import web

from sandboxkit import Session, Snapshot, errors
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.providers.kubernetes._options import ClusterOptions
from sandboxkit.providers.kubernetes._registry import authorization
from sandboxkit.providers.kubernetes._snapshot_store import KeptFiles
from sandboxkit.providers.kubernetes._snapshots import pushed, unpush
from tests.kubernetes.answers import answering
from tests.kubernetes.cluster import Cluster, kubectl
from tests.kubernetes.here import new_namespace
from tests.kubernetes.registry import Registry
from tests.kubernetes.test_snapshots import KEPT

pytestmark = [pytest.mark.timeout(240)]

_FILL = "head -c 300000 /dev/urandom > data; echo kept > /opt/kept; rm /etc/issue; md5sum data"
_SHOW = "md5sum data; cat /opt/kept; ls /etc/issue 2>&1"


@pytest.fixture
def registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Cluster
) -> Iterator[Registry]:
    if not cluster.is_of_script:
        pytest.skip("only nodes of scripts/kube.sh reach a registry on the loopback address")
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    with Registry(tmp_path) as registry:
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
        monkeypatch.setenv("SANDBOXKIT_KUBERNETES_SNAPSHOT_REGISTRY", registry.repository)
        yield registry
    registry.forget_pulled()


@pytest.fixture
def namespace(registry: Registry) -> Iterator[str]:
    """A namespace with a pull secret "pull"."""
    login = ["--docker-username=tester", "--docker-password=sesame"]
    with new_namespace() as name:
        create = ["create", "secret", "docker-registry", "pull", "-n", name, *login]
        kubectl(*create, f"--docker-server={registry.host}")
        yield name
        kubectl("delete", "secret", "pull", "-n", name)


def test_nodes_pull_snapshots_until_they_are_deleted(
    namespace: str, registry: Registry, tmp_path: Path
) -> None:
    state = tmp_path / "state" / "kubernetes-snapshots"
    with Session(KubernetesProvider(image_pull_secrets=["pull"])) as session:
        with session.sandbox() as base:
            made = base.exec(["sh", "-c", _FILL], check=True).result(60).stdout
            snapshot = base.snapshot().result(60)
        (digest,) = registry.manifests()
        (archive,) = state.glob("*.tar.gz")
        content = archive.read_bytes()
        archive.unlink()  # as on another machine, to which the record was copied
        with session.sandbox(snapshot=snapshot) as one, session.sandbox(snapshot=snapshot) as two:
            for each in (one, two):
                shown = each.exec(["sh", "-c", _SHOW]).result(60).stdout
                assert shown.startswith(f"{made}kept\nls: "), shown
            assert registry.layer_pulls() == 1
            # What one of them deletes is not to be found in the copy, which it can read.
            copy = one.read_file("/.sandboxkit-snapshot/archive").result(60)
            assert len(copy) == len(content)
            assert copy != content
            write = "echo > /.sandboxkit-snapshot/archive || touch /.sandboxkit-snapshot/a"
            done = one.exec(["sh", "-c", write], user="root").result(60)
            assert "Read-only" in done.stderr
            chained = two.snapshot().result(60)
        with session.sandbox(snapshot=chained) as third:
            assert third.exec(["sh", "-c", _SHOW]).result(60).stdout == shown
        assert len(registry.manifests()) == 2
        for made_of in (chained, snapshot):
            made_of.delete().result(60)
    assert registry.status(f"team/snapshots/manifests/{digest}") == 404
    assert registry.manifests() == []
    assert os.listdir(state) == []


def test_pods_without_root_get_pulled_snapshots(
    namespace: str, registry: Registry, tmp_path: Path
) -> None:
    provider = KubernetesProvider(security="restricted", image_pull_secrets=["pull"])
    make = "head -c 30000 /dev/urandom > a; mkdir -m 700 /tmp/b; cp a /tmp/b; md5sum a"
    with Session(provider, profile="strict", disk_mb=16, network="internet") as session:
        with session.sandbox() as base:
            made = base.exec(["sh", "-c", make], check=True).result(60).stdout
            snapshot = base.snapshot().result(60)
        next((tmp_path / "state").rglob("*.tar.gz")).unlink()
        with session.sandbox(snapshot=snapshot) as other:
            show = other.exec(["sh", "-c", "md5sum a; stat -c %a /tmp/b; cmp a /tmp/b/a"])
            assert show.result(60).stdout == f"{made}700\n"
        assert registry.layer_pulls() == 1
        snapshot.delete().result(60)


def test_failures_of_a_registry_are_reported(
    namespace: str, registry: Registry, tmp_path: Path
) -> None:
    state = tmp_path / "state" / "kubernetes-snapshots"
    with Session(KubernetesProvider(image_pull_secrets=["pull"])) as session:
        with session.sandbox() as base:
            registry.stop()
            with pytest.raises(
                errors.ProviderUnavailableError, match=f"registry {registry.host} cannot"
            ):
                base.snapshot().result(60)
            registry.start()
            registry.log_in("tester:wrong")
            with pytest.raises(errors.AuthenticationError, match=f"docker login {registry.host}"):
                base.snapshot().result(60)
            assert os.listdir(state) == []
            registry.log_in("tester:sesame")
            assert base.exec(["echo", "goes on"]).result(60).stdout == "goes on\n"
            snapshot, other = base.snapshot().result(60), base.snapshot().result(60)
        registry.stop()
        with pytest.raises(errors.ProviderUnavailableError, match=r"cannot delete an image"):
            snapshot.delete().result(60)
        assert len(Snapshot.list(provider="kubernetes").result(60)) == 2
        registry.start(deletions=False)
        with pytest.raises(
            errors.ConfigurationError, match=r"refuses to delete.*@sha256:\w{64} stays there"
        ):
            snapshot.delete().result(60)
        assert [each.id for each in Snapshot.list(provider="kubernetes").result(60)] == [other.id]
        registry.stop()
        registry.start()
        record = state / f"{other.id}.json"
        known = record.read_text()
        digest = json.loads(known)["pushed"][-64:]
        record.write_text(known.replace(digest, "0" * 64))
        with pytest.raises(
            errors.ImageNotFoundError, match=f"{registry.repository}@sha256:0{{64}}"
        ):
            session.sandbox(snapshot=other).start().result(60)
        record.write_text(known)
        other.delete().result(60)
    assert os.listdir(state) == []


def test_an_unrecorded_snapshot_leaves_no_image(registry: Registry, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(os.urandom(70_000))
    kept = replace(KEPT, id="snapshot-0123456789abcdef", bytes=70_000, unpacked=70_000)
    options = ClusterOptions(snapshot_registry=f"http://{registry.repository}")

    async def push(fail: bool) -> KeptFiles:
        async with pushed(kept, archive, options, answer=30, seconds=60) as done:
            if fail:
                assert len(registry.manifests()) == 1
                raise OSError("the disk is full")
            return done

    with pytest.raises(OSError, match="disk is full"):
        anyio.run(push, True)
    assert registry.manifests() == []
    done = anyio.run(push, False)
    assert done.pushed == f"http://{registry.repository}@{registry.manifests()[0]}"
    assert registry.status(f"team/snapshots/manifests/{kept.id}") == 200
    anyio.run(lambda: unpush(done, answer=30))
    assert registry.manifests() == []


async def login(challenge: str) -> str:
    async with aiohttp.ClientSession() as session:
        return await authorization(session, "registry.example", challenge)


@pytest.mark.anyio
async def test_token_services_fail_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    auth = base64.b64encode(b"user:secret").decode()
    config = {"auths": {"registry.example": {"auth": auth}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = 200, json.dumps({"token": "t"})

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.path == "/token"
        return web.Response(status=said[0], text=said[1])

    async with answering(answer, tmp_path) as (answers, _):
        scope = {"service": "registry", "scope": "repository:a/b:pull,push"}
        words = ",".join(f'{name}="{value}"' for name, value in scope.items())
        challenge = f'Bearer realm="{answers.server}/token",{words}'
        assert await login(challenge) == "Bearer t"
        assert answers.asked == [scope]
        assert answers.headers[0]["Authorization"] == f"Basic {auth}"
        for status, kind in (
            (401, errors.AuthenticationError),
            (429, errors.ProviderUnavailableError),
            (503, errors.ProviderUnavailableError),
        ):
            said = status, "<html>"
            with pytest.raises(errors.SandboxError, match=f"HTTP {status}") as caught:
                await login(challenge)
            assert type(caught.value) is kind


@pytest.mark.anyio
async def test_unreadable_configurations_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(errors.AuthenticationError, match="no credentials"):
        await login("Basic")
    program = tmp_path / "docker-credential-test"
    program.write_text("#!/bin/sh\necho no JSON\n")
    program.chmod(0o755)
    named = {"credHelpers": {"registry.example": "test"}}
    for content in ("[]", "{", json.dumps(named), '{"auths": {"registry.example": {"auth": "é"}}}'):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(errors.ConfigurationError, match=r"config\.json: .*docker login"):
            await login("Basic")
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
