"""The contract on E2B: its unmodified SDK against the emulator."""

from collections.abc import Iterator

import pytest

from sandboxkit.provider import Provider
from sandboxkit.providers.e2b import E2BProvider
from sandboxkit.testing.conformance import ProviderConformance
from tests.conformance.hooks import HostedHooks, VendorHooks
from tests.e2b.server import emulator


@pytest.fixture(scope="module", autouse=True)
def _emulator() -> Iterator[None]:
    with emulator() as server:
        VendorHooks.vendor = server._process.pid, server.url
        yield


class TestE2B(HostedHooks, ProviderConformance):
    spec = "sandboxkit.providers.e2b:E2BProvider"

    @classmethod
    def make_provider(cls) -> Provider:
        return E2BProvider()
