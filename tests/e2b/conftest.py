"""One emulator for all tests of E2B; each test ends without sandboxes and without violations."""

from collections.abc import Iterator

import pytest

from sandboxkit import Operation, Session
from sandboxkit.providers.e2b import E2BProvider
from tests.e2b.server import emulator
from tests.emulators._server import Server

TIMEOUT = 2.0


@pytest.fixture(scope="module")
def _server() -> Iterator[Server]:
    with emulator() as server:
        yield server


@pytest.fixture
def server(_server: Server) -> Iterator[Server]:
    """The emulator, without faults and without sandboxes; so it must be again at the end."""
    _server.clear()
    yield _server
    _server.clear()
    assert _server.alive == []
    assert _server.violations == []


@pytest.fixture
def session(server: Server) -> Iterator[Session]:
    """A session whose every call to E2B has to end within TIMEOUT seconds."""
    provider = E2BProvider(timeout=TIMEOUT)
    with Session(provider) as session:
        yield session
        server.clear()  # what a test has planned must not meet the cleaning up
    Operation(provider.aclose()).result(30)
