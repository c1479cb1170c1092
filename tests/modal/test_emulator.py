"""The emulator itself: it ends when it is told to, and makes what it was asked for to the end."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import Operation, Session
from sandboxkit.providers.modal import ModalProvider
from tests.emulators.modal.client import ModalEmulator

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0


@pytest.fixture
def process() -> Iterator["subprocess.Popen[str]"]:
    """One that a test may end, and leave anything in."""
    command = [sys.executable, "-m", "tests.emulators.modal"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_it_ends_when_its_input_ends(
    process: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator = ModalEmulator(process)
    monkeypatch.setenv("MODAL_SERVER_URL", emulator.url)
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-emulator")
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-emulator")
    provider = ModalProvider(timeout=5)
    session = Session(provider)
    sandbox = session.sandbox().start().result(SECONDS)
    reading = sandbox.exec(["sh", "-c", "echo up; yes"])
    assert next(iter(reading.stdout.lines())) == "up"
    sandbox.exec(["cat"], stdin=True)
    emulator.fault("SandboxTagsGetV2", "stall")
    listing = session.list()
    making = session.sandbox().start()
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(SECONDS) == 0
    for operation in (listing, making):
        operation.exception(SECONDS)
    Operation(provider.aclose()).exception(SECONDS)


def test_the_emulator_can_be_stopped_during_an_answer(process: "subprocess.Popen[str]") -> None:
    emulator = ModalEmulator(process)
    print('["doze", {}]', file=process.stdin, flush=True)
    assert process.stdin is not None
    process.stdin.close()
    assert emulator.url
    assert process.wait(SECONDS) == 0


def test_an_unawaited_creation_is_listed_and_can_be_ended(
    emulator: ModalEmulator, provider: ModalProvider
) -> None:
    with Session(provider) as session:
        session.sandbox().start().result(SECONDS)
        emulator.fault("SandboxCreateV2", "drop", times=40)
        making = session.sandbox().start()
        while len(emulator.running()) < 2 and not making.done():
            time.sleep(0.01)
            emulator.ask("cut")
        emulator.ask("calm")
        making.exception(SECONDS)
        left = len(emulator.running())
        assert left == 1 + (making.exception(SECONDS) is None)
    assert emulator.running() == []
