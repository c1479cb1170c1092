"""E2B for the tests: its emulator under the vendor's own environment variables, its words and limits."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

from sandboxkit import Sandbox
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers._hosted.baking import BakingProvider
from sandboxkit.providers.e2b import E2BProvider
from sandboxkit.providers.e2b._answers import NoRouteError
from tests.emulators._server import Server
from tests.emulators.e2b._shapes import SHAPES
from tests.hosted.vendor import Vendor

__all__ = ["E2B", "KEY", "E2BServer", "emulator", "environment"]

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


class E2B(Vendor):
    """E2B, as its own servers are."""

    name = "e2b"
    private_errors: ClassVar = {"NoRouteError": NoRouteError}
    starts = frozenset({"create"})
    on_the_way: ClassVar = {
        "POST /v2/sandboxes": ("status", *Vendor.broken),
        "/process.Process/Start": ("status", "reset", "stall"),
    }
    lost = ("drop", "reset_mid_body", "stall_body")
    throttled: ClassVar = {
        "status": 429,
        "body": {"code": 429, "message": "Rate limit exceeded"},
        "headers": {"retry-after": "1"},
    }
    wrong_key = ("E2B_API_KEY", "e2b_wrong")
    nowhere = ("E2B_API_URL", "http://127.0.0.1:9")
    patience = 10.0  # the SDK tries to connect for two seconds before it says that nobody listens
    variables = (
        ("E2B_API_KEY", "", "E2B_API_KEY"),
        ("E2B_API_KEY", "e2b_ with a space", "E2B_API_KEY"),
        ("E2B_API_KEY", "e2b_line\nbreak", "E2B_API_KEY"),
        ("E2B_API_KEY", "e2b_ü", "E2B_API_KEY"),
        ("E2B_API_URL", "ftp://somewhere", "E2B_API_URL"),
        ("E2B_SANDBOX_URL", "somewhere", "E2B_SANDBOX_URL"),
        ("E2B_DOMAIN", "https://e2b.app", "E2B_DOMAIN"),
    )
    options = (
        ("cpus", 2),
        ("memory_mb", 512),
        ("disk_mb", 512),
        ("pids", 100),
        ("gpu", "T4"),
        ("user", {"user": "root", "profile": "strict"}),
        ("workdir", {"workdir": "/", "profile": "strict"}),
        ("lifetime", 24 * 3600 + 1),
        ("env", {"env": {"A": "\ud800"}}),
    )
    images = (("no-such-template", "no-such-template"),)
    lifetimes = ((99.2, 100), (None, 900))
    streams = ("streamed", "called")
    strict: ClassVar = {"profile": "strict"}

    def emulator(self, *options: str) -> Server:
        return E2BServer(*options)

    def environment(self, server: E2BServer) -> Mapping[str, str]:
        return environment(server)

    def provider(self, timeout: float | None = None, **options: Any) -> BakingProvider[Any]:
        return E2BProvider(timeout=timeout or self.timeout, **options)

    def fill(self, server: E2BServer, sandboxes: int) -> None:
        server.limit(sandboxes)

    async def run(
        self,
        provider: BakingProvider[Any],
        sandbox: Sandbox,
        argv: tuple[str, ...],
        stream: str,
    ) -> ProgramStream:
        assert isinstance(provider, E2BProvider)
        machine = provider._known(str(sandbox.id)).machine
        if machine is not None:  # it has not ended
            machine.streams = stream == "streamed"
        return await super().run(provider, sandbox, argv, stream)
