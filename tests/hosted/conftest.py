"""Each vendor in turn, at its emulator."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import pytest

from sandboxkit import _registry
from sandboxkit.provider import FirstCommand
from sandboxkit.providers._hosted.agent import HostedInstance
from sandboxkit.providers._hosted.baking import BakingProvider
from sandboxkit.types import Command, SandboxSpec
from tests.daytona.server import emulator as daytona
from tests.e2b.server import emulator as e2b
from tests.modal.server import emulator as modal

EMULATORS: Mapping[str, Callable[[], AbstractContextManager[object]]] = {
    "daytona": daytona,
    "e2b": e2b,
    "modal": modal,
}
SPEC = SandboxSpec(lifetime=600)


@pytest.fixture(scope="module", params=EMULATORS)
def vendor(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a vendor, whose variables lead to its emulator."""
    with EMULATORS[request.param]():
        yield request.param


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the baked images of a test's own are remembered."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path))
    return tmp_path / "baked"


Provider = BakingProvider[HostedInstance]


def loaded(vendor: str) -> Provider:
    provider = _registry.load(vendor)
    assert isinstance(provider, BakingProvider)
    return provider


@asynccontextmanager
async def made(
    provider: Provider, spec: SandboxSpec = SPEC, first: FirstCommand | None = None
) -> AsyncIterator[str]:
    """A sandbox, which is deleted at the end."""
    starting = provider.create(spec) if first is None else provider.create_for(spec, first)
    sandbox_id = await starting
    try:
        yield sandbox_id
    finally:
        await provider.delete(sandbox_id)


async def printed(provider: Provider, sandbox_id: str, command: Command) -> str:
    """Run a command, which succeeds, and return its output."""
    text = b""

    async def output(stream: object, data: bytes) -> None:
        nonlocal text
        text += data

    assert (await provider.exec(sandbox_id, command, output)).status == 0
    return text.decode()
