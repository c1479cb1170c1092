"""The E2B emulator under the vendor's own environment variables."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from tests.emulators._server import Server

KEY = "e2b_0123456789abcdef"


def environment(server: Server) -> dict[str, str]:
    """The vendor's variables that lead its SDK to the emulator."""
    return {"E2B_API_KEY": KEY, "E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url}


@contextmanager
def emulator() -> Iterator[Server]:
    """An emulator in use; at its end it has no sandbox left, and has seen only what E2B knows."""
    with (
        Server("tests.emulators.e2b") as server,
        mock.patch.dict(os.environ, environment(server)),
    ):
        yield server
        assert server.violations == []
        assert server.alive == []
