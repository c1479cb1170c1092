"""Each vendor in turn, at its emulator."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import _registry
from sandboxkit.provider import FirstCommand
from sandboxkit.providers._hosted.vendor import VendorBox, VendorProvider
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


Box = VendorBox[Any]
Provider = VendorProvider[Box, Any]


def loaded(vendor: str) -> Provider:
    provider = _registry.load(vendor)
    assert isinstance(provider, VendorProvider)
    return provider


@asynccontextmanager
async def made(
    provider: Provider, spec: SandboxSpec = SPEC, first: FirstCommand | None = None
) -> AsyncIterator[Box]:
    """A sandbox, which is deleted at the end."""
    box = await provider.create(spec, first)
    try:
        yield box
    finally:
        await box.delete()


async def printed(box: Box, command: Command) -> str:
    """Run a command, which succeeds, and return its output."""
    text = b""

    async def output(stream: object, data: bytes) -> None:
        nonlocal text
        text += data

    assert (await box.exec(command, output)).status == 0
    return text.decode()
