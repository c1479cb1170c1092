"""Snapshots on Modal: what it cannot list, when it removes them itself, and lost answers."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import (
    ConfigurationError,
    ProviderUnavailableError,
    Session,
    Snapshot,
    SnapshotNotFoundError,
    _ambient,
)
from tests.emulators.modal.client import ModalEmulator

PATIENCE = 60.0


@pytest.fixture
def patient(emulator: ModalEmulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session whose calls may take as long as Modal's own limits; its snapshots are removed."""
    # The provider of calls without a session may know the emulator of another test.
    monkeypatch.setattr(_ambient, "_ambient", {})
    with Session("modal") as session:
        yield session
        emulator.ask("calm")
    for snapshot in listed():
        snapshot.delete().result(PATIENCE)
    for own in _ambient._ambient.values():
        own.close().result(PATIENCE)
    assert emulator.ask("images") == []


def listed() -> list[Snapshot]:
    return Snapshot.list(provider="modal").result(PATIENCE)


def test_a_lost_answer_is_asked_for_again_and_makes_one_image(
    emulator: ModalEmulator, patient: Session
) -> None:
    with patient.sandbox() as sandbox:
        sandbox.start().result(PATIENCE)
        emulator.fault("TaskSnapshotFilesystem", "drop", times=1)
        snapshot = sandbox.snapshot().result(PATIENCE)
        assert emulator.ask("calls")["TaskSnapshotFilesystem"] == 2
        assert [snapshot.id.rpartition(":")[2]] == emulator.ask("images")


def test_a_refused_snapshot_leaves_nothing(emulator: ModalEmulator, patient: Session) -> None:
    with patient.sandbox() as sandbox:
        sandbox.start().result(PATIENCE)
        emulator.fault("TaskSnapshotFilesystem", "status", status="RESOURCE_EXHAUSTED")
        with pytest.raises(ProviderUnavailableError):
            sandbox.snapshot().result(PATIENCE)
    assert listed() == []


def test_modal_itself_removes_a_snapshot_when_it_expires(patient: Session) -> None:
    with patient.sandbox() as sandbox:
        snapshot = sandbox.snapshot(ttl=1).result(PATIENCE)
    time.sleep(2.5)
    with pytest.raises(SnapshotNotFoundError, match=snapshot.id):
        patient.sandbox(snapshot=snapshot).start().result(PATIENCE)
    assert listed() == []  # the record has gone with it


def test_the_id_alone_starts_sandboxes_on_another_machine(
    patient: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with patient.sandbox() as sandbox:
        sandbox.write_file("/workspace/file", b"kept").result(PATIENCE)
        snapshot = sandbox.snapshot("base").result(PATIENCE)
    assert [each.info.name for each in listed()] == ["base"]
    tmp_path.chmod(0o700)
    with monkeypatch.context() as other:
        other.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path))
        assert listed() == []
        with patient.sandbox(snapshot=snapshot.id) as fork:
            assert fork.read_file("/workspace/file").result(PATIENCE) == b"kept"


@pytest.mark.parametrize("end", ["", ":1", ":python"])
def test_an_id_without_an_image_of_modals_is_never_taken_for_one_of_a_registry(
    end: str, emulator: ModalEmulator, patient: Session
) -> None:
    wrong = f"sandboxkit-snapshot-{'0' * 16}-{'0' * 8}-{'f' * 8}-{'0' * 8}{end}"
    with pytest.raises(SnapshotNotFoundError, match="sandboxkit-snapshot"):
        patient.sandbox(snapshot=wrong).start().result(PATIENCE)
    assert "ImageGetOrCreate" not in emulator.ask("calls")


def test_memory_is_refused_before_any_call(emulator: ModalEmulator, patient: Session) -> None:
    with pytest.raises(ConfigurationError, match="memory"):
        patient.sandbox().snapshot(kind="memory")
    assert emulator.ask("calls") == {}
