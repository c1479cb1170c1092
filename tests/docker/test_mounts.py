"""Datasets and volumes on a Docker daemon: which are ours, filled whole or not at all, and what killed clients leave."""

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

from sandboxkit import Dataset, Operation, Session, Volume, errors
from sandboxkit.datasets import DatasetStore
from sandboxkit.providers.docker import DockerProvider, _dataset_volumes
from sandboxkit.testing.conformance._base import until
from sandboxkit.types import SandboxSpec
from tests.docker.conftest import PROGRAMS, containers, docker
from tests.local import test_mounts as local_mounts

pytestmark = pytest.mark.usefixtures("daemon")


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
    dataset = local_mounts.odd_dataset(folder)
    try:
        local_mounts.assert_it_arrives_whole(DockerProvider(), dataset, tags={"test": tag})
    finally:
        remove_volumes(dataset)


@pytest.mark.parametrize("what", ["all", "content", "pointer"])
def test_a_volume_is_filled_once_and_after_removal(
    session: Session, dataset: Dataset, folder: Path, what: str
) -> None:
    content = (folder / "file").read_text()
    assert [read(session) for _ in range(2)] == [content] * 2
    with Session(DockerProvider(), mounts={"/data": dataset}) as other:
        assert read(other) == content
    pointer, filled = sorted(volumes(dataset), key=len)  # it is filled once
    remove_volumes(dataset, {"content": filled, "pointer": pointer}.get(what, ""))
    assert read(session) == content
    with Session(DockerProvider(), mounts={"/data": dataset}) as other:
        assert read(other) == content
    remove(DockerProvider())
    assert volumes(dataset) == []


def test_partial_copies_are_not_mounted_and_go(
    dataset: Dataset, folder: Path, tag: str, names: str
) -> None:
    argv = [sys.executable, "-c", PROGRAMS["killed_in_a_fill"], str(folder), names]
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
        pytest.raises(errors.SandboxError),
    ):
        session.run(["true"]).result(60)
    assert volumes(dataset) == []


def test_clients_filling_at_once_leave_one_copy(dataset: Dataset, folder: Path, names: str) -> None:
    (folder / "large").write_bytes(os.urandom(4 << 20))
    large = Dataset(folder)
    command, pipe = [sys.executable, "-c", PROGRAMS["fills"], str(folder), names], subprocess.PIPE
    clients = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) for _ in range(3)
    ]
    try:
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("\n")
        read = {client.communicate(timeout=120)[0].strip() for client in clients}
        assert read == {(folder / "file").read_text()}
        assert len(volumes(large)) == 2
    finally:
        remove_volumes(large)


def test_only_unused_datasets_are_removed(session: Session, dataset: Dataset) -> None:
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
    spec = SandboxSpec(mounts={"/data": unknown}, tags={"test": tag})
    with pytest.raises(errors.DatasetNotFoundError, match=unknown):
        Operation(DockerProvider().create(spec)).result(60)
    assert containers(tag) == []
    assert docker("volume", "ls", "--quiet", "--filter", f"name={unknown[7:]}") == []


def test_a_reset_keeps_a_mount_and_proves_the_rest(dataset: Dataset, tag: str) -> None:
    local_mounts.assert_a_reset_keeps_mounts(DockerProvider(), dataset, tags={"test": tag})


@pytest.fixture
def volume(tag: str) -> Iterator[Volume]:
    """A volume, which is removed in the end."""
    found = Volume(f"test-{tag[:20].lower()}")
    yield found
    subprocess.run(["docker", "volume", "rm", "--force", on_daemon(found)], check=True)


def on_daemon(volume: Volume) -> str:
    return f"sandboxkit-volume-{volume.name}"


def users_of(volume: Volume) -> list[str]:
    """Docker's arguments that list the containers that refer to a volume."""
    return ["ps", "--all", "--quiet", "--filter", f"volume={on_daemon(volume)}"]


def remove_volume(volume: Volume) -> None:
    Operation(DockerProvider().remove_volume(volume.name)).result(60)


@pytest.mark.parametrize("used", [False, True])
def test_others_volumes_are_neither_used_nor_removed(volume: Volume, tag: str, used: bool) -> None:
    docker("volume", "create", on_daemon(volume))
    container = f"sandboxkit-test-{tag}"
    image = os.environ.get("SANDBOXKIT_DOCKER_IMAGE", "sandboxkit/python:3.11")
    if used:
        mount = f"{on_daemon(volume)}:/data"
        docker("create", "--name", container, "--volume", mount, image, "true")
    try:
        with (
            Session(DockerProvider(), mounts={"/cache": volume}) as session,
            pytest.raises(errors.ConfigurationError, match=f"{on_daemon(volume)}.*did not make"),
        ):
            session.run(["true"]).result(60)
        assert volume.name not in Operation(DockerProvider().list_volumes()).result(60)
        with pytest.raises(errors.VolumeError, match=f"no volume '{volume.name}'"):
            remove_volume(volume)
        assert docker("volume", "inspect", on_daemon(volume))
    finally:
        if used:
            docker("rm", container)


def test_a_volume_that_was_removed_is_made_again(volume: Volume) -> None:
    with Session(DockerProvider(), mounts={"/cache": volume}) as session:
        for profile in ("standard", "strict"):
            result = session.run(["touch", "/cache/file"], profile=profile).result(60)
            assert result.returncode == 0, result.stderr
            until(lambda: not docker(*users_of(volume)), "the sandbox is gone")
            docker("volume", "rm", on_daemon(volume))
        assert session.run(["ls", "/cache"]).result(60).stdout == ""
    remove_volume(volume)


def test_what_a_killed_client_left_does_not_keep_a_volume(volume: Volume) -> None:
    argv = [sys.executable, "-c", PROGRAMS["killed_before_use"], volume.name]
    done = subprocess.run(argv, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert docker(*users_of(volume))
    with Session(DockerProvider(), mounts={"/cache": volume}, profile="strict") as session:
        assert session.run(["touch", "/cache/file"]).result(60).returncode == 0
    remove_volume(volume)
    assert docker(*users_of(volume)) == []
