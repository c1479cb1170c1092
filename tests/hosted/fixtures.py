"""The fixtures of each vendor's folder: one emulator, which each test leaves without sandboxes."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from sandboxkit import Operation, Sandbox, Session, Snapshot, _ambient
from sandboxkit.providers._hosted import creation
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers._hosted.vendor import VendorProvider
from tests.docker_here import require_docker
from tests.hosted.streams import Use
from tests.hosted.vendor import Vendor


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test of `VendorConformance` the cases that its vendor has."""
    vendor: Vendor | None = getattr(metafunc.cls, "vendor", None)
    if vendor is None:
        return
    options = list(vendor.options)
    if vendor.refuses_surrogates:  # which no file of TOML can have
        options.append(("env", {"env": {"A": "\ud800"}}))
    cases = {
        "answered": [
            pytest.param((call, answer), id=f"{index}-{call}-{answer.status}")
            for index, (call, answer) in enumerate((c, a) for a in vendor.answers for c in a.calls)
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
        "option": [pytest.param(each, id=f"{each[0]}={each[1]!r:.20}") for each in options],
        "refused": [pytest.param(x, id="-".join(map(str, x[0].values()))) for x in vendor.refused],
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
def provider(vendor: Vendor, server: Any) -> Iterator[VendorProvider[Any, Any]]:
    """A provider whose every call has to end within the vendor's `timeout`."""
    provider = vendor.provider()
    yield provider
    server.clear()  # what a test has planned must not meet the cleaning up
    Operation(provider.aclose()).result(30)


@pytest.fixture
def session(server: Any, provider: VendorProvider[Any, Any]) -> Iterator[Session]:
    with Session(provider) as session:
        yield session
        server.clear()


@pytest.fixture
def sandbox(server: Any, session: Session) -> Sandbox:
    """One that runs; the requests of its start are forgotten."""
    sandbox = session.sandbox().start().result(90)
    server.clear()
    return sandbox


@pytest.fixture
def stream(vendor: Vendor) -> str:
    """How a program's input goes, where a test does not ask for each way."""
    return str(vendor.streams[0])


@pytest.fixture
def use(vendor: Vendor, provider: VendorProvider[Any, Any], sandbox: Sandbox, stream: str) -> Use:
    """Start a program in the sandbox, do something with its stream, and close it."""

    def using(action: Callable[[ProgramStream], Awaitable[Any]], argv: tuple[str, ...]) -> Any:
        async def run() -> Any:  # Any: what the action returns
            program = await vendor.run(provider, sandbox, argv, stream)
            try:
                return await action(program)
            finally:
                await program.aclose()

        return Operation(run()).result(90)

    return using


@pytest.fixture
def other(vendor: Vendor, server: Any) -> Iterator[Session]:
    """A session whose provider knows nothing of the first one's sandboxes, as in another process."""
    provider = vendor.provider()
    with Session(provider) as session:
        yield session
        server.clear()
    Operation(provider.aclose()).result(30)


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
def rooted(vendor: Vendor) -> Iterator[Any]:
    """An emulator whose machines have a root and users of their own."""
    require_docker()
    with vendor.running("rooted") as server:
        yield server
