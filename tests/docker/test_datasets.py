"""Datasets on a Docker daemon: filled once, whole or not at all, and filled again if removed."""

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from sandboxkit import Dataset, DatasetNotFoundError, Operation, SandboxError, Session
from sandboxkit.datasets import DatasetStore
from sandboxkit.providers.docker import DockerProvider, _dataset_volumes
from sandboxkit.testing.conformance._base import until
from sandboxkit.types import SandboxSpec
from tests.docker.conftest import containers
from tests.docker.tcp_bridge import TcpBridge

pytestmark = pytest.mark.usefixtures("daemon")
_SHOWN = (
    "find -P . -mindepth 1 -printf '%P %y %m %T@ %l\\n'; find -P . -type f -exec sha256sum {} +"
)
KILLED = """
import os, signal, sys
import sandboxkit
from sandboxkit.datasets import DatasetStore
from tests.docker.test_datasets import use_names
use_names(sys.argv[2])
archive = DatasetStore.archive
def killed(store, digest):
    for number, chunk in enumerate(archive(store, digest)):
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        yield chunk
DatasetStore.archive = killed
dataset = sandboxkit.Dataset(sys.argv[1])
print(dataset.digest, flush=True)
with sandboxkit.Session("docker", mounts={"/data": dataset}) as session:
    session.run(["true"]).result()
"""
STARTS = """
import sys
import sandboxkit
from tests.docker.test_datasets import use_names
use_names(sys.argv[2])
dataset = sandboxkit.Dataset(sys.argv[1])
input()
with sandboxkit.Session("docker", mounts={"/data": dataset}) as session:
    print(session.run(["cat", "/data/file"]).result().stdout)
"""


def use_names(prefix: str) -> None:
    """Call the volumes of this process so: other tests remove all that are unused at any moment."""
    _dataset_volumes._PREFIX = prefix
    _dataset_volumes._POINTER = re.compile(prefix + "([0-9a-f]{64})")
    _dataset_volumes._VOLUME = re.compile(prefix + "([0-9a-f]{64})-[0-9a-f]{16}")


@pytest.fixture(autouse=True)
def names() -> Iterator[str]:
    """The names of a test's own volumes."""
    with mock.patch.multiple(
        _dataset_volumes, _PREFIX=mock.DEFAULT, _POINTER=mock.DEFAULT, _VOLUME=mock.DEFAULT
    ):
        prefix = f"sandboxkit-dataset-of-a-test-{secrets.token_hex(4)}-"
        use_names(prefix)
        yield prefix


def docker(*arguments: str) -> list[str]:
    command = ["docker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def volumes(dataset: Dataset) -> list[str]:
    return docker("volume", "ls", "--quiet", "--filter", f"name={dataset.digest[7:]}")


def remove_volumes(dataset: Dataset, name: str = "") -> None:
    """Remove a dataset's volumes, or that of this name, once the daemon has removed its containers."""

    def gone() -> bool:
        left = [name] if name else volumes(dataset)
        command = ["docker", "volume", "rm", *left]
        return not left or subprocess.run(command, capture_output=True).returncode == 0

    until(gone, "the volumes can be removed")


def remove(provider: DockerProvider, *, dry_run: bool = False) -> list[str]:
    return Operation(provider.remove_unused_datasets(dry_run=dry_run)).result(60)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose content no other test has, and a store of the test's own."""
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    made = tmp_path / "data"
    made.mkdir()
    (made / "file").write_text(secrets.token_hex(8))
    return made


@pytest.fixture
def dataset(folder: Path) -> Iterator[Dataset]:
    """A dataset, whose volumes are removed in the end."""
    found = Dataset(folder)
    yield found
    remove_volumes(found)


@pytest.fixture
def session(dataset: Dataset, tag: str) -> Iterator[Session]:
    with Session(DockerProvider(), mounts={"/data": dataset}, tags={"test": tag}) as session:
        yield session


def read(session: Session) -> str:
    return session.run(["cat", "/data/file"]).result(60).stdout


def test_names_links_and_modes_arrive_whole(folder: Path, tag: str) -> None:
    long = folder / ("a" * 200) / ("b" * 200)
    long.mkdir(parents=True)
    (long / os.fsdecode(b"not-utf8-\xff")).write_bytes(b"x" * 513)
    (long / "run").touch(0o700)
    (folder / "link").symlink_to("file")
    (folder / "empty").mkdir()
    dataset = Dataset(folder)
    stored = DatasetStore().use(dataset.digest)
    try:
        with Session(DockerProvider(), mounts={"/data": dataset}, tags={"test": tag}) as session:
            inside = session.run(["sh", "-c", f"cd /data; {_SHOWN}"]).result(60).stdout_bytes
        here = subprocess.run(["sh", "-c", _SHOWN], cwd=stored, capture_output=True, check=True)
        assert sorted(inside.splitlines()) == sorted(here.stdout.splitlines())
        assert len(inside.splitlines()) == 10
    finally:
        remove_volumes(dataset)


def test_a_volume_is_filled_once(session: Session, dataset: Dataset, folder: Path) -> None:
    content = (folder / "file").read_text()
    assert [read(session) for _ in range(2)] == [content] * 2
    filled = volumes(dataset)
    assert len(filled) == 2  # the content, and the pointer to it
    with Session(DockerProvider(), mounts={"/data": dataset}) as other:
        assert read(other) == content
    assert volumes(dataset) == filled


@pytest.mark.parametrize("what", ["all", "content", "pointer"])
def test_a_volume_that_was_removed_is_filled_again(
    session: Session, dataset: Dataset, folder: Path, what: str
) -> None:
    content = (folder / "file").read_text()
    assert read(session) == content
    pointer, filled = sorted(volumes(dataset), key=len)
    remove_volumes(dataset, {"content": filled, "pointer": pointer}.get(what, ""))
    assert read(session) == content
    with Session(DockerProvider(), mounts={"/data": dataset}) as other:
        assert read(other) == content
    remove(DockerProvider())
    assert volumes(dataset) == []


def test_what_a_killed_client_has_filled_is_not_mounted_and_goes(
    dataset: Dataset, folder: Path, tag: str, names: str
) -> None:
    argv = [sys.executable, "-c", KILLED, str(folder), names]
    done = subprocess.run(argv, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL
    (partial,) = volumes(dataset)
    assert docker("ps", "--all", "--quiet", "--filter", f"volume={partial}")
    with Session(DockerProvider(), mounts={"/data": dataset}, tags={"test": tag}) as session:
        assert read(session) == (folder / "file").read_text()
        assert partial in volumes(dataset)
        sandbox = session.sandbox().start().result(60)
        remove(DockerProvider())
        assert partial not in volumes(dataset)
        assert sandbox.exec(["cat", "/data/file"]).result(60).returncode == 0


def test_a_fill_that_fails_leaves_no_volume(dataset: Dataset) -> None:
    with (
        Session(DockerProvider(), mounts={"/data": dataset}) as session,
        mock.patch.object(DatasetStore, "archive", return_value=[b"no archive"]),
        pytest.raises(SandboxError),
    ):
        session.run(["true"]).result(60)
    assert volumes(dataset) == []


def test_clients_that_fill_at_once_leave_one_copy(
    dataset: Dataset, folder: Path, names: str
) -> None:
    (folder / "large").write_bytes(os.urandom(4 << 20))
    large = Dataset(folder)
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", STARTS, folder, names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    try:
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("\n")
            client.stdin.flush()
        read = {client.communicate(timeout=120)[0].strip() for client in clients}
        assert read == {(folder / "file").read_text()}
        assert len(volumes(large)) == 2
    finally:
        remove_volumes(large)


def test_a_dataset_in_use_is_kept_and_an_unused_one_is_removed(
    session: Session, dataset: Dataset
) -> None:
    provider = DockerProvider()
    sandbox = session.sandbox().start().result(60)
    assert dataset.digest not in remove(provider, dry_run=True)
    assert dataset.digest not in remove(provider)
    sandbox.stop().result(60)
    assert dataset.digest in remove(provider, dry_run=True)
    assert len(volumes(dataset)) == 2
    assert dataset.digest in remove(provider)
    assert volumes(dataset) == []


def test_a_dataset_that_nobody_has_is_an_error_before_anything_is_made(tag: str) -> None:
    unknown = "sha256:" + secrets.token_hex(32)
    provider = DockerProvider()
    with pytest.raises(DatasetNotFoundError, match=unknown):
        Operation(
            provider.create(SandboxSpec(mounts={"/data": unknown}, tags={"test": tag}))
        ).result(60)
    assert containers(tag) == []
    assert docker("volume", "ls", "--quiet", "--filter", f"name={unknown[7:]}") == []


def test_a_daemon_behind_tcp_gets_the_data_as_well(
    dataset: Dataset, folder: Path, tag: str, bridge: TcpBridge
) -> None:
    provider = DockerProvider(base_url=bridge.url)
    with Session(provider, mounts={"/data": dataset}, tags={"test": tag}) as session:
        assert read(session) == (folder / "file").read_text()
    Operation(provider.aclose()).result(60)


def test_a_reset_keeps_a_mount_and_proves_the_rest(
    dataset: Dataset, folder: Path, tag: str
) -> None:
    content = (folder / "file").read_text()
    with Session(
        DockerProvider(),
        mounts={"/data": dataset, "/workspace/given": dataset},
        tags={"test": tag},
        profile="strict",
        pool=1,
        max_concurrency=1,
        reuse="reset",
    ) as session:
        for _ in range(3):
            script = "cat /data/file given/file; ls; touch left /tmp/left; rm -rf /workspace"
            result = session.run(["sh", "-c", script]).result(60)
            assert result.stdout == f"{content}{content}given\n"
        stats = session.pool_stats()
        assert (stats.made, stats.thrown_away) == (1, {})
        assert stats.reset >= 2
