"""The contract on E2B: its unmodified SDK against the emulator."""

from sandboxkit.testing.conformance import ProviderConformance
from tests.conformance.hooks import HostedHooks
from tests.e2b.server import E2B


class TestE2B(HostedHooks, ProviderConformance):
    hosted = E2B()
    spec = "sandboxkit.providers.e2b:E2BProvider"
