"""E2B for the tests: its emulator under the vendor's own environment variables, its words and limits."""

from collections.abc import Mapping
from typing import Any, ClassVar

from sandboxkit import Sandbox
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers._hosted.vendor import VendorProvider
from sandboxkit.providers.e2b import E2BProvider
from sandboxkit.providers.e2b._answers import NoRouteError
from tests.emulators._server import Server
from tests.emulators.e2b._shapes import SHAPES
from tests.hosted.vendor import Vendor

KEY = "e2b_0123456789abcdef"


def prefix(server: Server) -> str:
    """What the paths of the emulator's control API begin with."""
    return "".join(SHAPES[each].prefix for each in server.options if each in SHAPES)


class E2B(Vendor):
    """E2B, as its own servers are."""

    name = "e2b"
    private_errors: ClassVar = {"NoRouteError": NoRouteError}

    def environment(self, server: Server) -> Mapping[str, str]:
        api = server.url + prefix(server)
        return {"E2B_API_KEY": KEY, "E2B_API_URL": api, "E2B_SANDBOX_URL": server.url}

    def provider(self, timeout: float | None = None, **options: Any) -> VendorProvider[Any, Any]:
        return E2BProvider(timeout=timeout or self.timeout, **options)

    def fill(self, server: Server, sandboxes: int) -> None:
        server.set(limit=sandboxes)

    async def run(
        self,
        provider: VendorProvider[Any, Any],
        sandbox: Sandbox,
        argv: tuple[str, ...],
        stream: str,
    ) -> ProgramStream:
        assert isinstance(provider, E2BProvider)
        machine = provider.box(str(sandbox.id)).machine
        if machine is not None:  # it has not ended
            machine.account.streams = stream == "streamed"
        return await super().run(provider, sandbox, argv, stream)


emulator = E2B().running
"""Options: "rooted", whose machines have a root of their own and need Docker; and a name of `SHAPES`, for
another server than E2B's own."""
