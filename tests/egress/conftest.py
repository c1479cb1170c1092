"""Fixtures of the tests of egress."""

from collections.abc import Iterator

import pytest

from sandboxkit import Sandbox, Session
from tests.egress.world import (
    PROVIDERS,
    Authority,
    Names,
    Origin,
    Records,
    opened,
    provider_or_skip,
)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The tests' own certificate authority."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """What names resolve to."""
    return Names(monkeypatch)


@pytest.fixture
def origin() -> Iterator[Origin]:
    """A server of plain HTTP at this machine's loopback."""
    with opened(Origin()) as server:
        yield server


@pytest.fixture
def secure(authority: Authority) -> Iterator[Origin]:
    """A server of HTTP over TLS at this machine's loopback."""
    with opened(Origin(authority.server)) as server:
        yield server


@pytest.fixture
def records() -> Records:
    """The audit records of a test."""
    return Records()


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    """The name of each provider that can run here."""
    return provider_or_skip(request.param)


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    """A local sandbox whose network each test sets."""
    with Session("local") as session, session.sandbox() as sandbox:
        yield sandbox
