"""E2B passes what each hosted vendor has to pass, and ends a program whose stream is closed."""

from typing import Any, ClassVar

import anyio
import pytest

from sandboxkit import Operation, Sandbox
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers._hosted.vendor import VendorProvider
from tests.e2b.server import E2B
from tests.emulators._server import Server
from tests.hosted.conformance import CostsConformance, StrictConformance, VendorConformance
from tests.hosted.streams import Use
from tests.hosted.vendor import Vendor, eventually


class TestE2B(VendorConformance, CostsConformance):
    vendor: ClassVar[Vendor] = E2B()
    name = vendor.name

    def test_bytes_sent_before_the_close_arrive(
        self, use: Use, sandbox: Sandbox, stream: str
    ) -> None:
        async def action(program: ProgramStream) -> None:
            await program.send(b"x" * 1_000_000)

        use(action, ("sh", "-c", "cd /workspace && cat >part && mv part whole"))
        eventually(lambda: sandbox.exec(["test", "-e", "whole"]).result(30).returncode == 0)
        assert len(sandbox.read_file("/workspace/whole").result(60)) == 1_000_000

    @pytest.mark.parametrize("argv", [("cat",), ("sleep", "1000"), ("cat", "/dev/zero")])
    def test_a_closed_stream_leaves_no_program(
        self, server: Server, use: Use, sandbox: Sandbox, argv: tuple[str, ...]
    ) -> None:
        before = server.state["programs"]

        async def action(program: ProgramStream) -> None:
            assert len(server.state["programs"]) == len(before) + 1

        use(action, argv)
        eventually(lambda: server.state["programs"] == before)

    def test_a_start_that_is_cancelled_leaves_no_program(
        self, server: Server, provider: VendorProvider[Any, Any], sandbox: Sandbox, stream: str
    ) -> None:
        before = server.state["programs"]

        async def cancelled(seconds: float) -> None:
            with anyio.move_on_after(seconds):
                program = await self.vendor.run(provider, sandbox, ("sleep", "1000"), stream)
                await program.aclose()

        for seconds in (0.0, 0.001, 0.003, 0.01, 0.1):
            Operation(cancelled(seconds)).result(60)
        eventually(lambda: server.state["programs"] == before)


class TestStrict(StrictConformance):
    pass
