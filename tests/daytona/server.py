"""The Daytona emulator under the vendor's own environment variables."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from tests.emulators._server import Server

KEY = "dtn_0123456789abcdef"


def environment(server: Server) -> dict[str, str]:
    """The vendor's variables that lead its SDK to the emulator."""
    return {"DAYTONA_API_KEY": KEY, "DAYTONA_API_URL": f"{server.url}/api"}


@contextmanager
def emulator(*options: str) -> Iterator[Server]:
    """An emulator in use; at its end it has no sandbox left, and has seen only what Daytona knows.

    "rooted" is an option: its machines have a root and other users, and need Docker.
    """
    with (
        Server("tests.emulators.daytona", *options) as server,
        mock.patch.dict(os.environ, environment(server)),
    ):
        yield server
        assert server.violations == []
        assert server.alive == []
