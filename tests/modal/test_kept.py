"""Shells are kept for the next command: none fails for that, and none is left."""

import pytest

from sandboxkit import (
    ProviderUnavailableError,
    Sandbox,
    SandboxNotFoundError,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.provider import Provider
from sandboxkit.providers.modal import ModalProvider
from tests.emulators.modal.client import ModalEmulator
from tests.hosted.kept_shells import KeptShells, Opened, said
from tests.modal.conftest import TIMEOUT
from tests.modal.test_faults import UNREACHABLE, each_with, raised, within


class TestModal(KeptShells):
    """As on the others."""

    ours = "_window=12[8]"

    @pytest.fixture
    def opened(self, emulator: ModalEmulator, sandbox: Sandbox) -> Opened:
        emulator.ask("calls")
        starts = 0

        def count() -> int:
            nonlocal starts
            made: dict[str, int] = emulator.ask("calls")
            starts += made.get("TaskExecStart", 0)
            return starts

        return count

    @pytest.fixture
    def another(self, sandbox: Sandbox) -> Provider:
        return ModalProvider(timeout=TIMEOUT)


@pytest.fixture
def sandbox(session: Session) -> Sandbox:
    """One with a kept shell."""
    sandbox = session.sandbox().start().result(30)
    assert said(sandbox) == "hello\n"
    return sandbox


@each_with({"TaskExecStdinWrite": UNREACHABLE})
def test_a_command_that_is_sent_while_modal_fails_runs_once_at_most(
    emulator: ModalEmulator, sandbox: Sandbox, call: str, kind: str, rule: dict[str, object]
) -> None:
    emulator.fault(call, kind, **rule)
    process = sandbox.exec(["sh", "-c", "echo ran >>/workspace/ran"])
    error = within(TIMEOUT + 3, lambda: process.exception(30))
    assert isinstance(error, ProviderUnavailableError)
    emulator.ask("calm")
    assert sandbox.exec(["sh", "-c", "cat ran || :"]).result(30).stdout in ("", "ran\n")


@pytest.mark.parametrize("kind", ["drop", "status"])
def test_a_fault_that_passes_is_not_seen(
    emulator: ModalEmulator, sandbox: Sandbox, kind: str
) -> None:
    rule = {"status": "UNAVAILABLE"} if kind == "status" else {}
    emulator.fault("TaskExecStdinWrite", kind, times=2, **rule)
    script = ["sh", "-c", "echo ran >>ran; cat ran"]
    assert sandbox.exec(script).result(30).stdout == "ran\n"


def test_output_that_breaks_off_goes_on(emulator: ModalEmulator, sandbox: Sandbox) -> None:
    expected = "".join(f"{number}\n" for number in range(1, 300_001))
    process = sandbox.exec(["sh", "-c", "seq 300000 & seq 300000 >&2; wait"])
    emulator.fault("TaskExecStdioRead", "drop", skip_replies=2, times=3)
    result = process.result(30)
    assert (result.stdout, result.stderr) == (expected, expected)


def test_a_silent_command_outlasts_modals_patience(sandbox: Sandbox) -> None:
    assert sandbox.exec(["sleep", str(TIMEOUT + 1)]).result(30).returncode == 0


def test_a_sandbox_that_ends_while_nothing_runs(emulator: ModalEmulator, sandbox: Sandbox) -> None:
    emulator.ask("end", sandbox_id=sandbox.id)
    error = raised(sandbox.exec(["true"]))
    assert isinstance(error, SandboxTerminatedError | SandboxNotFoundError)
