"""The modal provider shows every behaviour, through Modal's own SDK, against the emulator."""

from collections.abc import Iterator

import pytest

from sandboxkit.provider import Provider
from sandboxkit.providers.modal import ModalProvider
from sandboxkit.testing.conformance import ProviderConformance
from tests.emulators.modal.client import modal_emulator


@pytest.fixture(scope="class", autouse=True)
def emulator() -> Iterator[None]:
    """An emulator for the class."""
    with modal_emulator():
        yield


class TestModal(ProviderConformance):
    spec = "sandboxkit.providers.modal:ModalProvider"

    @classmethod
    def make_provider(cls) -> Provider:
        return ModalProvider()
