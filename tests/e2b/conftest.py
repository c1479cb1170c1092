"""One emulator for all tests of E2B; each test ends without sandboxes and without violations."""

from collections.abc import Iterator

import pytest

from sandboxkit import Operation, Session
from sandboxkit.providers._hosted import creation
from sandboxkit.providers.e2b import E2BProvider
from tests.e2b.server import E2BServer, emulator

TIMEOUT = 2.0


@pytest.fixture(autouse=True)
def answers_are_never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """No creation of an emulator's comes to light seconds after it got no answer."""
    monkeypatch.setattr(creation, "_LATE_SECONDS", 0.2)


@pytest.fixture(scope="module")
def _server() -> Iterator[E2BServer]:
    with emulator() as server:
        yield server


@pytest.fixture
def server(_server: E2BServer) -> Iterator[E2BServer]:
    """The emulator, without faults and without sandboxes; so it must be again at the end."""
    _server.clear()
    yield _server
    _server.clear()
    assert _server.alive == []
    assert _server.violations == []


@pytest.fixture
def provider(server: E2BServer) -> Iterator[E2BProvider]:
    """A provider whose every call to E2B has to end within TIMEOUT seconds."""
    provider = E2BProvider(timeout=TIMEOUT)
    yield provider
    Operation(provider.aclose()).result(30)


@pytest.fixture
def session(server: E2BServer, provider: E2BProvider) -> Iterator[Session]:
    """A session of that provider."""
    with Session(provider) as session:
        yield session
        server.clear()  # what a test has planned must not meet the cleaning up
