"""The modal provider shows every behaviour, through Modal's own SDK, against the emulator."""

from collections.abc import Iterator

import pytest

from sandboxkit import ConfigurationError, Sandbox, Session
from sandboxkit.provider import Provider
from sandboxkit.providers.modal import ModalProvider
from sandboxkit.testing.conformance import ProviderConformance
from sandboxkit.testing.conformance._base import DEADLINE
from tests.conformance.hooks import HostedHooks, VendorHooks
from tests.emulators.modal.client import modal_emulator


@pytest.fixture(scope="class", autouse=True)
def emulator() -> Iterator[None]:
    """An emulator for the class."""
    with modal_emulator() as vendor:
        VendorHooks.vendor = vendor._process.pid, vendor.url
        yield


class TestModal(HostedHooks, ProviderConformance):
    spec = "sandboxkit.providers.modal:ModalProvider"

    def test_memory_is_bounded(self, session: Session) -> None:
        """Unlike at the other vendors it may be asked for."""
        ProviderConformance.test_memory_is_bounded(self, session)

    @classmethod
    def make_provider(cls) -> Provider:
        return ModalProvider()

    # What Modal makes impossible is refused, by the name of the option.

    def test_renew_extends_the_lifetime(self, session: Session) -> None:
        sandbox = session.sandbox(lifetime=60)
        with pytest.raises(ConfigurationError, match="lifetime"):
            sandbox.renew(600).result(DEADLINE)

    def test_renew_may_shorten_the_lifetime(self, session: Session, sandbox: Sandbox) -> None:
        with pytest.raises(ConfigurationError, match="lifetime"):
            sandbox.renew(1).result(DEADLINE)
