"""Programs run unchanged with SANDBOXKIT_PROVIDER=e2b."""

import pytest

from tests.emulators._programs import Alive, Programs
from tests.emulators._server import Server


class TestE2B(Programs):
    name = "e2b"

    @pytest.fixture
    def alive(self, server: Server) -> Alive:
        return lambda: server.alive
