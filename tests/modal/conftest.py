"""One emulator for all tests of the folder; a test's faults and sandboxes end with it."""

from collections.abc import Iterator

import pytest

from sandboxkit import Operation, Session
from sandboxkit.providers._hosted import creation
from sandboxkit.providers.modal import ModalProvider
from tests.emulators.modal.client import ModalEmulator, modal_emulator

TIMEOUT = 2.5
"""Seconds that the provider of these tests gives Modal for an answer."""


@pytest.fixture(autouse=True)
def answers_are_never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """No creation of an emulator's comes to light seconds after it got no answer."""
    monkeypatch.setattr(creation, "_LATE_SECONDS", 0.2)


@pytest.fixture(scope="session")
def one_emulator() -> Iterator[ModalEmulator]:
    """The process; the variables point to it as long as it runs."""
    with modal_emulator() as emulator:
        yield emulator


@pytest.fixture
def emulator(one_emulator: ModalEmulator) -> Iterator[ModalEmulator]:
    """The emulator without faults; the test must leave no sandbox and break no rule."""
    one_emulator.ask("calls")
    yield one_emulator
    one_emulator.ask("calm")
    one_emulator.ask("skew", seconds=0.0)
    assert one_emulator.ask("violations") == []
    assert one_emulator.running() == []


@pytest.fixture
def provider(emulator: ModalEmulator) -> Iterator[ModalProvider]:
    """A provider that is not patient."""
    provider = ModalProvider(timeout=TIMEOUT, build_timeout=TIMEOUT)
    yield provider
    emulator.ask("calm")  # what a test has planned must not meet the cleaning up
    emulator.ask("skew", seconds=0.0)
    Operation(provider.aclose()).result(30)


@pytest.fixture
def session(provider: ModalProvider) -> Iterator[Session]:
    """A session on it."""
    with Session(provider) as session:
        yield session
