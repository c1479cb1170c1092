"""The contract on Daytona: its unmodified clients against the emulator."""

from collections.abc import Iterator

import pytest

from sandboxkit.provider import Provider
from sandboxkit.providers.daytona import DaytonaProvider
from sandboxkit.testing.conformance import ProviderConformance
from tests.conformance.hooks import HostedHooks, VendorHooks
from tests.daytona.server import emulator


@pytest.fixture(scope="module", autouse=True)
def _emulator() -> Iterator[None]:
    with emulator() as server:
        VendorHooks.vendor = server._process.pid, server.url
        yield


class TestDaytona(HostedHooks, ProviderConformance):
    snapshots_lose = frozenset({"holes", "nanoseconds", "xattrs"})
    """Daytona commits a container with Docker."""
    spec = "sandboxkit.providers.daytona:DaytonaProvider"

    @classmethod
    def make_provider(cls) -> Provider:
        return DaytonaProvider()
