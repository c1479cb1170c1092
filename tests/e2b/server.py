"""The E2B emulator under the vendor's own environment variables."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from tests.emulators._server import Server
from tests.emulators.e2b._shapes import SHAPES

__all__ = ["KEY", "E2BServer", "emulator", "environment"]

KEY = "e2b_0123456789abcdef"


class E2BServer(Server):
    """What the tests may ask of the emulator of E2B beyond faults; `clear` takes it back."""

    def __init__(self, *options: str) -> None:
        super().__init__("tests.emulators.e2b", *options)
        self.prefix = "".join(SHAPES[each].prefix for each in options if each in SHAPES)

    def limit(self, sandboxes: int) -> None:
        """Let the account have no more at a time."""
        self._ask("limit", sandboxes)

    def refuse_to_fork(self, why: str) -> None:
        """Let no process be started, for the kernel's reason."""
        self._ask("unforkable", why)

    def hold_inputs(self) -> None:
        """Let a proxy pass on a streamed request only when all of it has come."""
        self._ask("hold")

    def drop_idle_inputs(self, seconds: float) -> None:
        """Let the proxy end streamed requests of which nothing came for so long, as AgentENV does after 30 s."""
        self._ask("idle", seconds)

    @property
    def programs(self) -> list[str]:
        """The command lines of what the daemons of all sandboxes have started, and still runs."""
        found: list[str] = self._ask("state")["programs"]
        return found

    @property
    def kept_alive(self) -> int:
        """How many signs of life have come on streamed inputs."""
        found: int = self._ask("state")["kept_alive"]
        return found


def environment(server: E2BServer) -> dict[str, str]:
    """The vendor's variables that lead its SDK to the emulator."""
    api = server.url + server.prefix
    return {"E2B_API_KEY": KEY, "E2B_API_URL": api, "E2B_SANDBOX_URL": server.url}


@contextmanager
def emulator(*options: str) -> Iterator[E2BServer]:
    """An emulator in use; at its end it has no sandbox left, and has seen only what E2B knows.

    Options: "rooted", whose machines have a root of their own and need Docker; and a name of `SHAPES`, for
    another server than E2B's own.
    """
    with (
        E2BServer(*options) as server,
        mock.patch.dict(os.environ, environment(server)),
    ):
        yield server
        assert server.violations == []
        assert server.alive == []
