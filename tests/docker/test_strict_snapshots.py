"""Snapshots of containers: names that no layer keeps, and strict ones: what fits, is refused, or is left by a kill."""

import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from sandboxkit import ConfigurationError, Operation, SandboxStartError, Session, Snapshot
from sandboxkit.providers.docker import DockerProvider, _memory_folders, _snapshots
from tests.docker.conftest import PROGRAMS, docker
from tests.docker_here import TEST_IMAGE

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def label(monkeypatch: pytest.MonkeyPatch) -> str:
    """The label of this test's own keepers: other processes take snapshots at the same time."""
    found = f"sandboxkit.keeper-{secrets.token_hex(8)}"
    monkeypatch.setattr(_memory_folders, "_LABEL", found)
    return found


@pytest.fixture
def session(daemon: None) -> Iterator[Session]:
    """A strict session on the daemon; its snapshots are removed."""
    provider = DockerProvider()
    with Session(provider, profile="strict", image=TEST_IMAGE, tags={"test": "strict"}) as session:
        yield session
    for snapshot in listed():
        snapshot.delete().result(PATIENCE)
    Operation(provider.aclose()).result(PATIENCE)


def listed() -> list[Snapshot]:
    """The snapshots of these tests; listing removes what killed processes left."""
    return Snapshot.list({"test": "strict"}, provider="docker").result(PATIENCE)


def containers(*filters: str) -> list[str]:
    return docker("ps", "-aq", *(f"--filter={each}" for each in filters))


def keepers() -> list[str]:
    return containers(f"label={_memory_folders._LABEL}")


def test_names_that_a_layer_reads_as_deletions_are_refused_and_others_kept(daemon: None) -> None:
    with Session("docker", image=TEST_IMAGE) as session, session.sandbox() as sandbox:
        for name in PROGRAMS["names_of_deletions"].split("|"):
            make = 'mkdir -p "$(dirname "$1")" && touch "$1"'
            sandbox.exec(["sh", "-c", make, "sh", name], check=True).result(PATIENCE)
            where = re.escape(repr(f"/workspace/{name.removesuffix('/file')}"))
            with pytest.raises(ConfigurationError, match=where):
                sandbox.snapshot(tags="test:strict").result(PATIENCE)
            sandbox.exec(["sh", "-c", "rm -r .[!.]* *"]).result(PATIENCE)
        assert listed() == []
        sandbox.exec(["touch", "a.wh.b", ".whx"], check=True).result(PATIENCE)
        kept = sandbox.snapshot(tags="test:strict").result(PATIENCE)
        seen = session.run(["ls", "-A"], snapshot=kept).result(PATIENCE).stdout.split()
        kept.delete().result(PATIENCE)
        assert seen == [".whx", "a.wh.b"]


def test_its_size_is_that_of_the_archive_however_long_the_chain(session: Session) -> None:
    with session.sandbox() as sandbox:
        sandbox.write_file("/workspace/file", b"x" * 3_000_000).result(PATIENCE)
        first = sandbox.snapshot().result(PATIENCE)
    with session.sandbox(snapshot=first) as sandbox:
        second = sandbox.snapshot().result(PATIENCE)
    sizes = [each.bytes or 0 for each in (first, second)]
    assert all(3_000_000 <= size < 4_000_000 for size in sizes), sizes
    first.delete().result(PATIENCE)  # nothing of the second lies on it
    with session.sandbox(snapshot=second) as sandbox:
        assert len(sandbox.read_file("/workspace/file").result(PATIENCE)) == 3_000_000


def test_another_profile_or_workdir_is_refused_before_a_container_is_made(session: Session) -> None:
    with session.sandbox() as sandbox:
        snapshot = sandbox.snapshot().result(PATIENCE)
    with pytest.raises(ConfigurationError, match="profile='strict'"):
        session.sandbox(snapshot=snapshot, profile="standard").start().result(PATIENCE)
    with pytest.raises(ConfigurationError, match=r"'/tmp', '/workspace'"):
        session.sandbox(snapshot=snapshot, workdir="/srv").start().result(PATIENCE)
    with session.sandbox(profile="standard") as sandbox:
        standard = sandbox.snapshot().result(PATIENCE)
    with pytest.raises(ConfigurationError, match="profile='standard'"):
        session.sandbox(snapshot=standard).start().result(PATIENCE)
    with pytest.raises(ConfigurationError, match="command"):
        session.sandbox(snapshot=snapshot, command=["sleep", "1"])


def test_files_that_do_not_fit_end_the_start_with_what_to_change(session: Session) -> None:
    with session.sandbox(disk_mb=100) as sandbox:
        sandbox.write_file("/workspace/file", b"x" * 20_000_000).result(PATIENCE)
        snapshot = sandbox.snapshot().result(PATIENCE)
    with pytest.raises(SandboxStartError, match="disk_mb"):
        session.sandbox(snapshot=snapshot, disk_mb=16).start().result(PATIENCE)
    assert session.list({"test": "strict"}).result(PATIENCE) == []


def test_a_file_that_is_one_huge_hole_fills_no_disk(session: Session) -> None:
    with session.sandbox() as sandbox:
        sandbox.exec(["python3", "-c", PROGRAMS["makes_a_hole"]], check=True).result(PATIENCE)
        snapshot = sandbox.snapshot().result(PATIENCE)
    assert (snapshot.bytes or 0) < 100_000
    with session.sandbox(snapshot=snapshot) as sandbox:
        seen = sandbox.exec(["python3", "-c", PROGRAMS["shows_the_hole"]]).result(PATIENCE)
        assert seen.stdout == "True 0 123456789\n"


def test_an_image_without_programs_can_be_kept_and_started_again(session: Session) -> None:
    recipe = f"FROM {TEST_IMAGE}\nRUN rm -f /bin/find /usr/bin/find /bin/tar /usr/bin/tar\n"
    build = ["docker", "build", "-q", "-t", "sandboxkit/without:test", "-"]
    subprocess.run(build, input=recipe, check=True, capture_output=True, text=True)
    snapshot = None
    try:
        with session.sandbox(image="sandboxkit/without:test") as sandbox:
            sandbox.write_file("/workspace/file", b"kept").result(PATIENCE)
            snapshot = sandbox.snapshot().result(PATIENCE)
        with session.sandbox(image="sandboxkit/without:test", snapshot=snapshot) as sandbox:
            assert sandbox.read_file("/workspace/file").result(PATIENCE) == b"kept"
    finally:
        if snapshot is not None:
            snapshot.delete().result(PATIENCE)
        docker("rmi", "-f", "sandboxkit/without:test")
    assert keepers() == []


def test_a_sandbox_without_taker_can_be_deleted_and_listings_remove_remains(
    session: Session, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [sys.executable, "-c", PROGRAMS["takes_snapshots"], label]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as taker:
        try:
            while not (paused := containers("label=test=strict", "status=paused")):
                assert taker.poll() is None
        finally:
            taker.kill()
    listed()
    assert len(keepers()) == 1  # it may be of a process that lives
    clock = time.time
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: clock() + 1e6)
        listed()
    assert len(keepers()) == 1, "a clock that is ahead makes nothing older"
    monkeypatch.setattr(_snapshots, "_STALE", 0.0)
    listed()
    assert keepers() == []
    assert len(paused) == 1
    for info in session.list({"test": "strict"}).result(PATIENCE):
        Operation(session._provider.box(info.id).delete()).result(PATIENCE)
    assert containers("label=test=strict") == []
