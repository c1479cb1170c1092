"""The modal provider shows every behaviour, through Modal's own SDK, against the emulator."""

import pytest

from sandboxkit import ConfigurationError, Sandbox, Session
from sandboxkit.testing.conformance import ProviderConformance
from sandboxkit.testing.conformance._base import DEADLINE
from tests.conformance.hooks import HostedHooks
from tests.modal.server import Modal


class TestModal(HostedHooks, ProviderConformance):
    hosted = Modal()
    spec = "sandboxkit.providers.modal:ModalProvider"

    def test_memory_is_bounded(self, session: Session) -> None:
        """Unlike at the other vendors it may be asked for."""
        ProviderConformance.test_memory_is_bounded(self, session)

    # What Modal makes impossible is refused, by the name of the option.

    def test_renew_extends_the_lifetime(self, session: Session) -> None:
        with pytest.raises(ConfigurationError, match="lifetime"):
            session.sandbox(lifetime=60).renew(600).result(DEADLINE)

    def test_renew_may_shorten_the_lifetime(self, session: Session, sandbox: Sandbox) -> None:
        with pytest.raises(ConfigurationError, match="lifetime"):
            sandbox.renew(1).result(DEADLINE)
