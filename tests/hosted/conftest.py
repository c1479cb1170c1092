"""Each vendor in turn, at its emulator."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sandboxkit import _registry
from sandboxkit.providers._hosted.agent import HostedInstance
from sandboxkit.providers._hosted.baking import BakingProvider
from tests.daytona.server import emulator as daytona
from tests.e2b.server import emulator as e2b
from tests.emulators.modal.client import modal_emulator as modal

EMULATORS: Mapping[str, Callable[[], AbstractContextManager[object]]] = {
    "daytona": daytona,
    "e2b": e2b,
    "modal": modal,
}


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


def loaded(vendor: str) -> BakingProvider[HostedInstance]:
    """A new provider."""
    provider = _registry.load(vendor)
    assert isinstance(provider, BakingProvider)
    return provider
