"""FakeProvider keeps the contract, but for other processes and isolation."""

from sandboxkit.testing.conformance import CoreConformance
from tests.conformance.hooks import FakeHooks


class TestFake(FakeHooks, CoreConformance):
    """Everything that can be asked of a provider that isolates nothing."""

    spec = "sandboxkit.testing:FakeProvider"
