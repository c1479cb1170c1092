"""The local provider shows every behaviour."""

from sandboxkit.provider import Provider
from sandboxkit.providers.local import LocalProvider
from sandboxkit.testing.conformance import ProviderConformance


class TestLocal(ProviderConformance):
    spec = "sandboxkit.providers.local:LocalProvider"

    @classmethod
    def make_provider(cls) -> Provider:
        return LocalProvider()
