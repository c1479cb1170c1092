"""Programs run unchanged with SANDBOXKIT_PROVIDER=daytona."""

import pytest

from tests.emulators._programs import Alive, Programs
from tests.emulators._server import Server


class TestDaytona(Programs):
    name = "daytona"

    @pytest.fixture
    def alive(self, server: Server) -> Alive:
        return lambda: server.alive
