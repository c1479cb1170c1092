"""Programs run unchanged with SANDBOXKIT_PROVIDER=modal."""

import pytest

from tests.emulators._programs import Alive, Programs
from tests.emulators.modal.client import ModalEmulator


class TestModal(Programs):
    name = "modal"

    @pytest.fixture
    def alive(self, emulator: ModalEmulator) -> Alive:
        return emulator.running
