"""Snapshots on Modal: what it cannot list, when it removes them itself, and lost answers."""

import time

import pytest

from sandboxkit import ProviderUnavailableError, Session, Snapshot, SnapshotNotFoundError
from tests.emulators._server import Server

PATIENCE = 60.0


def test_a_lost_answer_is_asked_for_again_and_makes_one_image(
    server: Server, patient: Session
) -> None:
    with patient.sandbox() as sandbox:
        sandbox.start().result(PATIENCE)
        server.fault("TaskSnapshotFilesystem", "drop", times=1)
        snapshot = sandbox.snapshot().result(PATIENCE)
        assert server.requests.count("TaskSnapshotFilesystem") == 2
        assert [snapshot.id.rpartition(":")[2]] == server.state["images"]


def test_a_refused_snapshot_leaves_nothing(server: Server, patient: Session) -> None:
    with patient.sandbox() as sandbox:
        sandbox.start().result(PATIENCE)
        server.fault("TaskSnapshotFilesystem", "status", status="RESOURCE_EXHAUSTED")
        with pytest.raises(ProviderUnavailableError):
            sandbox.snapshot().result(PATIENCE)
    assert Snapshot.list(provider="modal").result(PATIENCE) == []


def test_modal_itself_removes_a_snapshot_when_it_expires(patient: Session) -> None:
    with patient.sandbox() as sandbox:
        snapshot = sandbox.snapshot(ttl=1).result(PATIENCE)
    time.sleep(2.5)
    with pytest.raises(SnapshotNotFoundError, match=snapshot.id):
        patient.sandbox(snapshot=snapshot).start().result(PATIENCE)
    assert Snapshot.list(provider="modal").result(PATIENCE) == []  # the record has gone with it


@pytest.mark.parametrize("end", ["", ":1", ":python"])
def test_an_id_without_an_image_of_modals_is_never_taken_for_one_of_a_registry(
    end: str, server: Server, patient: Session
) -> None:
    wrong = f"sandboxkit-snapshot-{'0' * 16}-{'0' * 8}-{'f' * 8}-{'0' * 8}{end}"
    with pytest.raises(SnapshotNotFoundError, match="sandboxkit-snapshot"):
        patient.sandbox(snapshot=wrong).start().result(PATIENCE)
    assert "ImageGetOrCreate" not in server.requests
