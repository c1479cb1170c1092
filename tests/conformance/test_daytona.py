"""The contract on Daytona: its unmodified clients against the emulator."""

from collections.abc import Iterator

import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.provider import Provider
from sandboxkit.providers.daytona import DaytonaProvider
from sandboxkit.testing.conformance import ProviderConformance
from tests.conformance.hooks import VendorHooks
from tests.daytona.server import emulator


@pytest.fixture(scope="module", autouse=True)
def _emulator() -> Iterator[None]:
    with emulator() as server:
        VendorHooks.vendor = server._process.pid, server.url
        yield


class TestDaytona(VendorHooks, ProviderConformance):
    """Daytona gives every sandbox the limits of its snapshot: those cannot be asked for."""

    silence_bound = 25.0
    """7 s of silence until another connection is tried, 7 s on that, a last look; the rest is load."""
    snapshot_profiles = ("standard",)
    """The emulator's machines have no root, which strict needs: tests/daytona/test_snapshots.py has those that do."""
    snapshots_lose = frozenset({"holes", "nanoseconds", "xattrs"})
    """Daytona commits a container with Docker."""
    spec = "sandboxkit.providers.daytona:DaytonaProvider"

    @classmethod
    def make_provider(cls) -> Provider:
        return DaytonaProvider()

    def test_pids_bounds_the_processes(self, session: Session) -> None:
        with pytest.raises(ConfigurationError, match="pids=64"):
            session.sandbox(pids=64)

    def test_a_fork_bomb_leaves_a_usable_sandbox(self, session: Session) -> None:
        with pytest.raises(ConfigurationError, match="pids=64"):
            session.sandbox(pids=64)

    def test_memory_is_bounded(self, session: Session) -> None:
        with pytest.raises(ConfigurationError, match="memory_mb=128"):
            session.sandbox(memory_mb=128)
