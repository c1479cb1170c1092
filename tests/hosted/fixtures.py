"""The fixtures of each vendor's folder: one emulator, which each test leaves without sandboxes."""

from collections.abc import Iterator
from typing import Any

import pytest

from sandboxkit import Operation, Session, Snapshot, _ambient
from sandboxkit.providers._hosted import creation
from sandboxkit.providers._hosted.baking import BakingProvider
from tests.docker_here import require_docker
from tests.hosted.vendor import Vendor

__all__ = [
    "answers_are_never_late",
    "one_emulator",
    "patient",
    "provider",
    "pytest_generate_tests",
    "rooted",
    "server",
    "session",
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test of `VendorConformance` the cases that its vendor has."""
    vendor: Vendor | None = getattr(metafunc.cls, "vendor", None)
    if vendor is None:
        return
    cases = {
        "answered": [
            pytest.param((call, answer), id=f"{index}-{call}-{answer.status}")
            for index, (call, answer) in enumerate(
                (call, answer) for answer in vendor.answers for call in answer.calls
            )
        ],
        "on_the_way": [
            pytest.param((request, kind), id=f"{request.replace('/', '.')}-{kind}")
            for request, kinds in vendor.on_the_way.items()
            for kind in kinds
        ],
        "lost": vendor.lost,
        "broken": vendor.broken,
        "stopping": vendor.stops,
        "variable": [pytest.param(each, id=f"{each[0]}={each[1]!r}") for each in vendor.variables],
        "option": [pytest.param(each, id=f"{each[0]}={each[1]!r:.20}") for each in vendor.options],
        "image": [pytest.param(each, id=each[0]) for each in vendor.images],
        "lifetime": [pytest.param(each, id=str(each[0])) for each in vendor.lifetimes],
        "way": vendor.breaks,
        "stream": vendor.streams,
    }
    for name in metafunc.fixturenames:
        if name in cases:
            metafunc.parametrize(name, cases[name])


@pytest.fixture(autouse=True)
def answers_are_never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """No creation of an emulator's comes to light seconds after it got no answer."""
    monkeypatch.setattr(creation, "_LATE_SECONDS", 0.2)


@pytest.fixture(scope="session")
def one_emulator(vendor: Vendor) -> Iterator[Any]:
    """The process; `server` leads to it."""
    with vendor.emulator() as server:
        yield server


@pytest.fixture
def server(vendor: Vendor, one_emulator: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The emulator without faults; the test must leave no sandbox and break no rule."""
    for name, value in vendor.environment(one_emulator).items():
        monkeypatch.setenv(name, value)
    one_emulator.clear()
    yield one_emulator
    one_emulator.clear()
    assert one_emulator.alive == []
    assert one_emulator.violations == []


@pytest.fixture
def provider(vendor: Vendor, server: Any) -> Iterator[BakingProvider[Any]]:
    """A provider whose every call has to end within the vendor's `timeout`."""
    provider = vendor.provider()
    yield provider
    server.clear()  # what a test has planned must not meet the cleaning up
    Operation(provider.aclose()).result(30)


@pytest.fixture
def session(server: Any, provider: BakingProvider[Any]) -> Iterator[Session]:
    """A session of that provider."""
    with Session(provider) as session:
        yield session
        server.clear()


@pytest.fixture
def patient(vendor: Vendor, server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session whose calls may take as long as the vendor's own limits; its snapshots are removed."""
    # The provider of calls without a session may know the emulator of another test.
    monkeypatch.setattr(_ambient, "_ambient", {})
    with Session(vendor.name) as session:
        yield session
        server.clear()
    for snapshot in Snapshot.list(provider=vendor.name).result(60):
        snapshot.delete().result(60)
    for own in _ambient._ambient.values():
        own.close().result(60)


@pytest.fixture(scope="module")
def rooted(vendor: Vendor, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An emulator whose machines have a root and users of their own."""
    require_docker()
    with vendor.emulator("rooted") as server, pytest.MonkeyPatch.context() as patch:
        for name, value in vendor.environment(server).items():
            patch.setenv(name, value)
        yield server
        assert server.violations == []
        assert server.alive == []
