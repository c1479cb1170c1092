"""Snapshots on Daytona: what is lost, refused or full, what another machine sees, and sizes and users."""

import pytest

from sandboxkit import Sandbox, Session, Snapshot, errors
from tests.emulators._server import Server

PATIENCE = 60.0


def listed() -> list[Snapshot]:
    return Snapshot.list(provider="daytona").result(PATIENCE)


def test_a_snapshot_whose_answer_is_lost_is_taken_and_refused_requests_make_none(
    server: Server, patient: Session
) -> None:
    with patient.sandbox() as sandbox:
        server.fault("/snapshot", "drop", times=1)
        snapshot = sandbox.snapshot().result(PATIENCE)
        server.fault("/snapshot", "status", status=502, times=1)
        with pytest.raises(errors.ProviderUnavailableError, match="502"):
            sandbox.snapshot().result(PATIENCE)
        server.set(most_snapshots=1)
        with pytest.raises(errors.CapacityError, match=r"Maximum allowed: 1.*cleanup --snapshots"):
            sandbox.snapshot().result(PATIENCE)
        assert [each.id for each in listed()] == [snapshot.id]


def test_a_second_snapshot_of_a_busy_sandbox_can_be_tried_again(
    server: Server, patient: Session
) -> None:
    with patient.sandbox() as sandbox:
        sandbox.start().result(PATIENCE)
        assert sandbox.id is not None
        # One object takes one snapshot after another, so the second comes from another object.
        both = [sandbox.snapshot(), patient.from_id(sandbox.id).result(PATIENCE).snapshot()]
        failures = [each.exception(PATIENCE) for each in both]
        assert sorted(error is None for error in failures) == [False, True]
        (error,) = filter(None, failures)
        assert isinstance(error, errors.ProviderUnavailableError)
        assert "started or stopped" in str(error)
        sandbox.snapshot().result(PATIENCE)
        assert len(listed()) == 2


def test_a_snapshot_that_daytona_does_not_finish_is_an_error(
    server: Server, patient: Session
) -> None:
    with patient.sandbox() as sandbox:
        sandbox.start().result(PATIENCE)
        server.set(loses_snapshot=True)
        with pytest.raises(errors.SandboxStartError, match="made no snapshot"):
            sandbox.snapshot().result(PATIENCE)
        assert sandbox.exec(["true"]).result(PATIENCE).returncode == 0


def test_an_inactive_snapshot_says_how_to_activate_it(server: Server, patient: Session) -> None:
    with patient.sandbox() as sandbox:
        snapshot = sandbox.snapshot().result(PATIENCE)
        server.ask("deactivate")
        with pytest.raises(errors.SnapshotNotFoundError, match="activate it on the dashboard"):
            patient.sandbox(snapshot=snapshot).start().result(PATIENCE)


def test_a_fork_has_the_size_of_the_sandbox_and_no_other_is_given(patient: Session) -> None:
    with patient.sandbox(image="python:3.12", cpus=2, memory_mb=4096) as sandbox:
        (fork,) = sandbox.fork(1).result(PATIENCE)
        assert isinstance(fork, Sandbox), fork
        assert fork.exec(["true"]).result(PATIENCE).returncode == 0
        fork.stop().result(PATIENCE)
        snapshot = sandbox.snapshot().result(PATIENCE)
        with pytest.raises(errors.ConfigurationError, match=r"'cpu': 2.* not .*'cpu': 4"):
            patient.sandbox(snapshot=snapshot, cpus=4).start().result(PATIENCE)
