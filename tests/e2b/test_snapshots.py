"""Snapshots on E2B: what a lost answer, another machine and a removed snapshot lead to."""

import pytest

from sandboxkit import (
    ProviderUnavailableError,
    Session,
    Snapshot,
)
from tests.e2b.server import E2BServer


def test_a_snapshot_whose_answer_is_lost_is_removed(server: E2BServer, patient: Session) -> None:
    with patient.sandbox() as sandbox:
        server.fault("/snapshots", "drop", times=1)
        with pytest.raises(ProviderUnavailableError):
            sandbox.snapshot().result(60)
        assert any(request.endswith("/snapshots") for request in server.requests)
        assert Snapshot.list(provider="e2b").result(60) == []
