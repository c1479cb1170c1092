"""One emulator for all tests of the folder; a test's faults and sandboxes end with it."""

from collections.abc import Iterator

import pytest

from sandboxkit import Operation, Session
from sandboxkit.providers._hosted import creation
from sandboxkit.providers.daytona import DaytonaProvider
from tests.daytona.server import emulator as emulator_in_use
from tests.emulators._server import Server

TIMEOUT = 2.0
"""Seconds that the provider of these tests gives Daytona for an answer."""


@pytest.fixture(autouse=True)
def answers_are_never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """No creation of an emulator's comes to light seconds after it got no answer."""
    monkeypatch.setattr(creation, "_LATE_SECONDS", 0.2)


@pytest.fixture(scope="session")
def one_emulator() -> Iterator[Server]:
    """The process; the variables point to it as long as it runs."""
    with emulator_in_use() as server:
        yield server


@pytest.fixture
def server(one_emulator: Server) -> Iterator[Server]:
    """The emulator without faults; the test must leave no sandbox and break no rule."""
    one_emulator.clear()
    yield one_emulator
    one_emulator.clear()
    assert one_emulator.violations == []
    assert one_emulator.alive == []


@pytest.fixture
def provider(server: Server) -> Iterator[DaytonaProvider]:
    """A provider that is not patient."""
    provider = DaytonaProvider(timeout=TIMEOUT, build_timeout=20)
    yield provider
    Operation(provider.aclose()).result(30)


@pytest.fixture
def session(server: Server, provider: DaytonaProvider) -> Iterator[Session]:
    """A session on it."""
    with Session(provider) as session:
        yield session
        server.clear()  # what a test has planned must not meet the cleaning up
