"""The local provider shows every behaviour."""

import pytest

from sandboxkit import Session
from sandboxkit.provider import Provider
from sandboxkit.providers.local import LocalProvider
from sandboxkit.testing.conformance import ProviderConformance
from sandboxkit.testing.conformance.silence import SilenceConformance
from tests.conformance.hooks import LocalHooks
from tests.local_here import require_local


class _Local(LocalHooks):
    spec = "sandboxkit.providers.local:LocalProvider"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def here(cls) -> None:
        """Skip the contract where no local sandbox can start."""
        require_local()

    @classmethod
    def make_provider(cls) -> Provider:
        return LocalProvider()


class TestLocal(_Local, ProviderConformance):
    silence_bound = 18.0
    """Beside other tests."""


class TestAlone(_Local):
    @pytest.mark.alone
    def test_silence_is_known_as_soon_as_is_documented(
        self, provider: Provider, session: Session
    ) -> None:
        check = SilenceConformance()
        check.freeze, check.thaw = self.freeze, self.thaw  # type: ignore[method-assign]  # the rest is alike
        check.test_silence_is_not_a_timeout(provider, session)
