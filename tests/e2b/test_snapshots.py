"""Snapshots on E2B: what a lost answer, another machine and a removed snapshot lead to."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import (
    ConfigurationError,
    Operation,
    ProviderUnavailableError,
    Sandbox,
    Session,
    Snapshot,
    SnapshotNotFoundError,
    _ambient,
)
from tests.docker_here import require_docker
from tests.e2b.server import E2BServer, emulator


@pytest.fixture
def patient(server: E2BServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session whose calls may take as long as E2B's own limits; its snapshots are removed."""
    # The provider of calls without a session may know the emulator of another test.
    monkeypatch.setattr(_ambient, "_ambient", {})
    with Session("e2b") as session:
        yield session
        server.clear()
    for snapshot in Snapshot.list(provider="e2b").result(60):
        snapshot.delete().result(60)


def test_a_snapshot_whose_answer_is_lost_is_removed(server: E2BServer, patient: Session) -> None:
    with patient.sandbox() as sandbox:
        server.fault("/snapshots", "drop", times=1)
        with pytest.raises(ProviderUnavailableError):
            sandbox.snapshot().result(60)
        assert any(request.endswith("/snapshots") for request in server.requests)
        assert Snapshot.list(provider="e2b").result(60) == []


def test_another_machine_sees_the_expiry_of_a_snapshot_and_removes_it(
    patient: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = time.time()
    with patient.sandbox(tags=("run:42",)) as sandbox:
        snapshot = sandbox.snapshot("base", ttl=600).result(60)
    tmp_path.chmod(0o700)
    with monkeypatch.context() as other:
        other.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path))
        (seen,) = Snapshot.list(provider="e2b").result(60)
        assert (seen.id, seen.info.name, seen.tags) == (snapshot.id, None, {})
        assert seen.info.expires_at is not None
        assert before + 599 <= seen.info.expires_at.timestamp() <= time.time() + 601
        seen.delete().result(60)
        assert Snapshot.list(provider="e2b").result(60) == []
    assert Snapshot.list(provider="e2b").result(60) == []


def test_a_removed_snapshot_is_named(patient: Session) -> None:
    with patient.sandbox() as sandbox:
        snapshot = sandbox.snapshot().result(60)
    snapshot.delete().result(60)
    with pytest.raises(SnapshotNotFoundError, match=snapshot.id):
        patient.sandbox(snapshot=snapshot).start().result(60)


def test_more_snapshots_than_a_page_are_listed(patient: Session) -> None:
    with patient.sandbox() as sandbox:
        taken = [sandbox.snapshot(f"{number}").result(60) for number in range(4)]
    listed = Snapshot.list(provider="e2b").result(60)
    assert {each.id for each in listed} == {each.id for each in taken}
    assert {each.info.name for each in listed} == set("0123")


def test_memory_is_refused_before_any_call(server: E2BServer, patient: Session) -> None:
    with pytest.raises(ConfigurationError, match="memory"):
        patient.sandbox().snapshot(kind="memory")
    assert server.requests == []


def test_strict_sandboxes_start_from_the_files_of_strict_ones() -> None:
    require_docker()
    with emulator("rooted"), Session("e2b", profile="strict") as session:
        with session.sandbox() as base:
            base.write_file("/workspace/file", b"kept").result(60)
            (fork,) = base.fork(1).result(60)
            assert isinstance(fork, Sandbox), fork
        change = (
            "cat file; echo more >>file && id -u; touch /usr/local/bin/x 2>/dev/null && echo bad"
        )
        output = fork.exec(["sh", "-c", change]).result(60).stdout
        assert output.split() == ["kept65534"]
        fork.stop().result(60)
        found = Operation(_all(session)).result(60)
        assert found == []


async def _all(session: Session) -> list[str]:
    return [info.id async for info in session._provider.list_snapshots({})]
