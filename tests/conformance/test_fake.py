"""FakeProvider keeps the contract, but for other processes and isolation."""

from sandboxkit.provider import Provider
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.conformance import CoreConformance
from tests.conformance.hooks import FakeHooks


class TestFake(FakeHooks, CoreConformance):
    """Everything that can be asked of a provider that isolates nothing."""

    spec = "sandboxkit.testing:FakeProvider"

    @classmethod
    def make_provider(cls) -> Provider:
        return FakeProvider()
