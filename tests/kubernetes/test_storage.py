"""Datasets and volumes in a claim: filled once, whole or not at all, and filled again if removed."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar
from unittest import mock

import pytest

from sandboxkit import Dataset, Operation, Session, Volume, errors
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.types import SandboxSpec
from tests.kubernetes.cluster import Cluster, wait_until
from tests.kubernetes.here import PROGRAMS, new_claim, new_namespace, require_cluster, sandboxes
from tests.local.test_mounts import (
    assert_a_reset_keeps_mounts,
    assert_it_arrives_whole,
    odd_dataset,
)

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("cluster")]
T = TypeVar("T")
Mounts = dict[str, Dataset | Volume | str]

_VARIABLE = "SANDBOXKIT_KUBERNETES_STORAGE_CLAIM"


@pytest.fixture(scope="module")
def claim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A namespace in which providers use a claim, and the claim's folder."""
    folder = tmp_path_factory.mktemp("claim")
    with (
        new_namespace() as namespace,
        new_claim(require_cluster(), namespace, folder) as claim,
        mock.patch.dict(os.environ, {_VARIABLE: claim}),
    ):
        yield namespace, folder


@pytest.fixture
def room(claim: tuple[str, Path]) -> str:
    return claim[0]


@pytest.fixture
def store(
    claim: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The folder of the claim, with nothing in it; this machine's store of datasets is the test's own."""
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    yield claim[1]
    shutil.rmtree(claim[1] / "sandboxkit", ignore_errors=True)
    os.chown(claim[1], 0, 0)


@pytest.fixture
def folder(store: Path, tmp_path: Path) -> Path:
    """A folder whose content no other test has."""
    made = tmp_path / "data"
    made.mkdir()
    (made / "file").write_text(secrets.token_hex(8))
    return made


@pytest.fixture
def session(folder: Path) -> Iterator[Session]:
    """A session whose sandboxes mount the folder's dataset at /data."""
    with Session("kubernetes", mounts={"/data": Dataset(folder)}) as session:
        yield session


def read(session: Session) -> str:
    return session.run(["cat", "/data/file"]).result(120).stdout


def stored(store: Path) -> list[str]:
    """Return the names of the datasets' folders in the claim, without lock files."""
    parent = store / "sandboxkit" / "datasets"
    return sorted(name for name in os.listdir(parent) if not name.startswith(".lock"))


def ask(call: Callable[[KubernetesProvider], Awaitable[T]]) -> T:
    """Make a provider for one call, and return the call's result."""

    async def asked() -> T:
        provider = KubernetesProvider()
        try:
            return await call(provider)
        finally:
            await provider.aclose()

    return Operation(asked()).result(120)


def unused(*, dry_run: bool = False) -> list[str]:
    return ask(lambda provider: provider.remove_unused_datasets(dry_run=dry_run))


def test_a_dataset_is_filled_once_and_after_removal(
    session: Session, folder: Path, store: Path
) -> None:
    content = (folder / "file").read_text()
    assert read(session) == content
    (name,) = stored(store)
    filled = os.stat(store / "sandboxkit" / "datasets" / name).st_ino
    with Session("kubernetes", mounts={"/data": Dataset(folder)}) as other:
        assert read(other) == content
    assert os.stat(store / "sandboxkit" / "datasets" / name).st_ino == filled
    shutil.rmtree(store / "sandboxkit" / "datasets" / name)  # behind the provider's back
    assert read(session) == content
    assert stored(store) == [name]


def test_names_links_modes_and_times_arrive_whole(folder: Path) -> None:
    assert_it_arrives_whole("kubernetes", odd_dataset(folder))


def test_partial_copies_are_not_mounted(
    folder: Path, store: Path, found_cluster: Cluster, room: str
) -> None:
    (folder / "second").write_bytes(b"x" * 4_000_000)
    environment = {**os.environ, "SANDBOXKIT_KUBERNETES_LEASE": "8"}
    before = {pod["metadata"]["name"] for pod in found_cluster.pods(room)}
    argv, pipe = [sys.executable, "-c", PROGRAMS["storage"]["killed"], str(folder)], subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, text=True, env=environment) as client:
        parent = store / "sandboxkit" / "datasets"
        wait_until(
            lambda: parent.is_dir() and any(name.startswith(".partial") for name in stored(store)),
            "a partial copy",
        )
        (keeper,) = (
            pod for pod in found_cluster.pods(room) if pod["metadata"]["name"] not in before
        )
        client.communicate("\n", timeout=60)
    assert client.returncode == -signal.SIGKILL
    dataset = Dataset(folder)
    with Session("kubernetes", mounts={"/data": dataset}) as session:
        assert read(session) == (folder / "file").read_text()
        size = session.run(["stat", "-c%s", "/data/second"]).result(120)
        assert size.stdout == "4000000\n"
    # The keeper's lease has ended it, or ends it now.
    path = f"/api/v1/namespaces/{room}/pods/{keeper['metadata']['name']}"
    wait_until(
        lambda: found_cluster.request("GET", path)["status"]["phase"] == "Succeeded",
        "the end of the keeper",
    )
    assert unused() == [dataset.digest]
    assert stored(store) == []
    ask(lambda provider: provider.box(keeper["metadata"]["name"]).delete())


def test_clients_filling_at_once_leave_one_copy(folder: Path, store: Path) -> None:
    argv, pipe = [sys.executable, "-c", PROGRAMS["storage"]["starts"], str(folder)], subprocess.PIPE
    clients = [
        subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, bufsize=1) for _ in range(3)
    ]
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("\n")
    found = {client.communicate(timeout=150)[0].strip() for client in clients}
    assert found == {(folder / "file").read_text()}
    assert stored(store) == [Dataset(folder).digest[7:]]


def test_only_unused_datasets_are_removed(session: Session, folder: Path, store: Path) -> None:
    """Also if a removal was killed before."""
    name = Dataset(folder).digest[7:]
    parent = store / "sandboxkit" / "datasets"
    hidden = parent / f".hidden.{name}.sandboxkit-0123456789abcdef"
    sandbox = session.sandbox().start().result(120)
    assert unused(dry_run=True) == []
    (parent / name).rename(hidden)
    assert unused() == []
    assert stored(store) == [name]
    assert sandbox.read_file("/data/file").result(60) == (folder / "file").read_bytes()
    sandbox.stop().result(60)
    assert unused(dry_run=True) == [f"sha256:{name}"]
    assert stored(store) == [name]
    (parent / name).rename(hidden)
    assert unused() == [f"sha256:{name}"]
    assert stored(store) == []


def test_unknown_datasets_leave_nothing(store: Path, found_cluster: Cluster, room: str) -> None:
    unknown = "sha256:" + secrets.token_hex(32)
    with (
        Session("kubernetes", mounts={"/data": unknown}) as session,
        pytest.raises(errors.DatasetNotFoundError, match=unknown),
    ):
        session.run(["true"]).result(120)
    assert sandboxes(found_cluster, room) == []
    assert stored(store) == []


def test_a_full_claim_is_a_capacity_error(folder: Path, store: Path) -> None:
    (folder / "large").write_bytes(os.urandom(4 << 20))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", store], check=True)
    try:
        with (
            Session("kubernetes", mounts={"/data": Dataset(folder)}) as session,
            pytest.raises(errors.CapacityError, match=r"is full.*cleanup --datasets"),
        ):
            session.run(["true"]).result(120)
        assert stored(store) == []
    finally:
        subprocess.run(["umount", "--lazy", store], check=True)


UNUSABLE: dict[str, tuple[str, str, type[Exception], str]] = {
    "not writable": (
        "SECURITY",
        "restricted",
        errors.ConfigurationError,
        r"cannot be written.*uid 65534",
    ),
    "no python": (
        "IMAGE",
        "sandboxkit/scratch:1",
        errors.ConfigurationError,
        "python3 in the default",
    ),
    "no claim": (
        "STORAGE_CLAIM",
        "absent",
        errors.SandboxStartError,
        r'"absent" not found.*check storage',
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_claim_that_cannot_be_used_is_said(
    folder: Path, found_cluster: Cluster, room: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    variable, value, raised, words = UNUSABLE[name]
    monkeypatch.setenv(f"SANDBOXKIT_KUBERNETES_{variable}", value)
    mounts: Mounts = {"/data": Dataset(folder)}
    if variable == "STORAGE_CLAIM":
        mounts = {"/cache": Volume("cache")}
    with (
        Session("kubernetes", mounts=mounts, network="internet") as session,
        pytest.raises(raised, match=words),
    ):
        session.run(["true"]).result(120)
    assert sandboxes(found_cluster, room) == []


def test_restricted_pods_use_one_user(
    folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXKIT_KUBERNETES_SECURITY", "restricted")
    os.chown(store, 65534, 65534)
    mounts: Mounts = {"/data": Dataset(folder), "/cache": Volume("cache")}
    with Session("kubernetes", mounts=mounts, network="internet") as session:
        script = "cat /data/file; touch /data/new || echo >/cache/kept refused"
        done = session.run(["sh", "-c", script]).result(120)
        assert done.stdout == (folder / "file").read_text(), done.stderr
        assert session.run(["cat", "/cache/kept"]).result(120).stdout == "refused\n"


def test_a_reset_keeps_a_mount(folder: Path) -> None:
    assert_a_reset_keeps_mounts("kubernetes", Dataset(folder))


def test_a_volume_goes_with_what_any_user_has_written(store: Path) -> None:
    script = "mkdir -p /cache/own/below; touch /cache/own/below/file; chmod 0 /cache/own"
    with Session("kubernetes", mounts={"/cache": Volume("cache")}, user="1000") as session:
        done = session.run(["sh", "-c", script]).result(120)
        assert done.returncode == 0, done.stderr
    assert ask(lambda provider: provider.list_volumes()) == ["cache"]
    with pytest.raises(errors.VolumeError, match="no volume 'other'"):
        ask(lambda provider: provider.remove_volume("other"))
    ask(lambda provider: provider.remove_volume("cache"))
    assert ask(lambda provider: provider.list_volumes()) == []
    assert os.listdir(store / "sandboxkit" / "volumes") == []


def test_without_a_claim_nothing_is_mounted_or_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_VARIABLE, raising=False)
    provider = KubernetesProvider(kubeconfig="/nowhere")
    with pytest.raises(errors.ConfigurationError, match=r"mounts='/cache'.*STORAGE_CLAIM"):
        provider.check(SandboxSpec(mounts={"/cache": Volume("cache").source}))
    assert Operation(provider.list_volumes()).result(60) == []
    assert Operation(provider.remove_unused_datasets()).result(60) == []
    with pytest.raises(errors.VolumeError, match="no volume 'cache'"):
        Operation(provider.remove_volume("cache")).result(60)
