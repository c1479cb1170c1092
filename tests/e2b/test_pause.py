"""Pauses and snapshots on E2B: a lost answer, the lifetime, and a pause by another process."""

import time

import pytest

from sandboxkit import SandboxState, Session, Snapshot, errors
from sandboxkit.types import SandboxInfo
from tests.emulators._server import Server


def left(info: SandboxInfo) -> float:
    assert info.expires_at is not None
    return info.expires_at.timestamp() - time.time()


def test_a_pause_whose_answer_is_lost_holds_and_the_lifetime_stands_still(server: Server) -> None:
    with Session("e2b") as session, session.sandbox(lifetime=100) as sandbox:
        running = sandbox.exec(["sh", "-c", "echo ready; sleep 1; echo done"])
        assert next(iter(running.stdout.lines())) == "ready"
        began = time.monotonic()
        before = left(sandbox.status().result(30))
        server.fault("/pause", "drop", times=1)
        sandbox.pause().result(60)
        info = sandbox.status().result(30)
        assert (info.state, info.expires_at) == (SandboxState.PAUSED, None)
        time.sleep(4)
        sandbox.resume().result(60)
        rest = left(sandbox.status().result(30))
        ran = time.monotonic() - began - 4
        assert before - ran - 1 < rest < before + 1
        assert running.result(60).stdout == "ready\ndone\n"


def test_a_pause_that_fails_leaves_it_running(server: Server, session: Session) -> None:
    with session.sandbox() as sandbox:
        running = sandbox.exec(["sh", "-c", "echo ready; sleep 1; echo done"], timeout=30)
        assert next(iter(running.stdout.lines())) == "ready"
        server.fault("/pause", "status", status=500, times=1)
        with pytest.raises(errors.ProviderUnavailableError, match="pause a sandbox"):
            sandbox.pause().result(60)
        assert sandbox.exec(["echo", "runs"]).result(30).stdout == "runs\n"
        assert running.result(30).stdout == "ready\ndone\n"


def test_another_process_pauses_it(server: Server, other: Session) -> None:
    with Session("e2b") as session, session.sandbox() as sandbox:
        running = sandbox.exec(["sh", "-c", "echo ready; sleep 600"])
        assert next(iter(running.stdout.lines())) == "ready"
        other.from_id(str(sandbox.id)).result(30).pause().result(30)
        with pytest.raises(errors.OutcomeUnknownError):
            running.result(60)
        for refused in (sandbox.exec(["true"]), sandbox.renew(300)):
            with pytest.raises(errors.SandboxPausedError):
                refused.result(60)
        sandbox.resume().result(60)
        assert sandbox.exec(["echo", "runs"]).result(60).stdout == "runs\n"


def test_a_snapshot_whose_answer_is_lost_is_removed(server: Server, patient: Session) -> None:
    with patient.sandbox() as sandbox:
        server.fault("/snapshots", "drop", times=1)
        with pytest.raises(errors.ProviderUnavailableError):
            sandbox.snapshot().result(60)
        assert any(request.endswith("/snapshots") for request in server.requests)
        assert Snapshot.list(provider="e2b").result(60) == []
