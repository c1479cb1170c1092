"""Sandboxes that cost: a session asks for them no sooner than Modal wants."""

import pytest

from sandboxkit.providers.modal import ModalProvider
from tests.emulators.modal.client import ModalEmulator
from tests.hosted.throttled import JOBS, create_all


def test_no_request_comes_before_modals_retry_after(
    emulator: ModalEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODAL_MAX_THROTTLE_WAIT", "1")  # the SDK waits for each by itself, else
    rule = {"status": "RESOURCE_EXHAUSTED", "message": "slow down", "retry_after": 1.0}
    emulator.fault("SandboxCreateV2", "status", per_second=2, **rule)
    watch = create_all(ModalProvider())
    assert watch.early == 0
    assert watch.refused > 0
    assert emulator.ask("calls")["SandboxCreateV2"] == watch.asked == JOBS + watch.refused
