"""The modal provider shows every behaviour, through Modal's own SDK, against the emulator."""

from collections.abc import Iterator

import pytest

from sandboxkit import ConfigurationError, Sandbox, Session
from sandboxkit.provider import Provider
from sandboxkit.providers.modal import ModalProvider
from sandboxkit.testing.conformance import ProviderConformance
from sandboxkit.testing.conformance._base import DEADLINE
from tests.conformance.hooks import VendorHooks, child
from tests.emulators.modal.client import modal_emulator


@pytest.fixture(scope="class", autouse=True)
def emulator() -> Iterator[None]:
    """An emulator for the class."""
    with modal_emulator() as vendor:
        VendorHooks.vendor = child("tests.emulators.modal"), vendor.url
        yield


class TestModal(VendorHooks, ProviderConformance):
    silence_bound = 25.0
    """7 s of silence until another connection is tried, 7 s on that, a last look; the rest is load."""
    snapshot_profiles = ("standard",)
    """The emulator's machines have no root, which strict needs."""
    spec = "sandboxkit.providers.modal:ModalProvider"

    @classmethod
    def make_provider(cls) -> Provider:
        return ModalProvider()

    # What Modal makes impossible is refused, by the name of the option.

    def test_pids_bounds_the_processes(self, session: Session) -> None:
        with pytest.raises(ConfigurationError, match="pids=64"):
            session.sandbox(pids=64)

    def test_a_fork_bomb_leaves_a_usable_sandbox(self, session: Session) -> None:
        with pytest.raises(ConfigurationError, match="pids=64"):
            session.sandbox(pids=64)

    def test_renew_extends_the_lifetime(self, session: Session) -> None:
        sandbox = session.sandbox(lifetime=60)
        with pytest.raises(ConfigurationError, match="lifetime"):
            sandbox.renew(600).result(DEADLINE)

    def test_renew_may_shorten_the_lifetime(self, session: Session, sandbox: Sandbox) -> None:
        with pytest.raises(ConfigurationError, match="lifetime"):
            sandbox.renew(1).result(DEADLINE)
