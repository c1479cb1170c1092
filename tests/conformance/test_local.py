"""The local provider shows every behaviour."""

from sandboxkit.provider import Provider
from sandboxkit.providers.local import LocalProvider
from sandboxkit.testing.conformance import ProviderConformance
from tests.conformance.hooks import LocalHooks


class TestLocal(LocalHooks, ProviderConformance):
    spec = "sandboxkit.providers.local:LocalProvider"

    @classmethod
    def make_provider(cls) -> Provider:
        return LocalProvider()
