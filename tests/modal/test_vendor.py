"""Modal passes what each hosted vendor has to pass."""

from typing import Any, ClassVar

import pytest

from sandboxkit import ConfigurationError, Operation, Sandbox, Session
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers._hosted.vendor import VendorProvider
from tests.emulators._server import Server
from tests.hosted.conformance import VendorConformance
from tests.hosted.streams import Use
from tests.hosted.vendor import Vendor, eventually
from tests.modal.server import Modal


class TestModal(VendorConformance):
    vendor: ClassVar[Vendor] = Modal()
    name = vendor.name

    def test_a_lifetime_is_rounded_up(self, server: Any, session: Session) -> None:  # type: ignore[override]  # no cases
        sandbox = session.sandbox(lifetime=0.4).start().result(30)
        assert server.state["timeouts"][sandbox.id] == 1

    @pytest.mark.parametrize(
        ("choice", "named"),
        [({"region": "atlantis"}, "atlantis"), ({"app": "no spaces allowed"}, "no spaces")],
    )
    def test_an_option_of_the_provider_that_modal_refuses_is_named(
        self, server: Server, choice: dict[str, Any], named: str
    ) -> None:
        provider = self.vendor.provider(**choice)
        with Session(provider) as session, pytest.raises(ConfigurationError, match=named):
            session.sandbox().start().result(30)
        Operation(provider.aclose()).result(30)

    # Modal kills no program: the end of its input is what ends it.

    @pytest.mark.parametrize("argv", [("sh", "-c", "cat; echo ended >/tmp/ended")])
    def test_a_closed_stream_leaves_no_program(
        self, server: Any, use: Use, sandbox: Sandbox, argv: tuple[str, ...]
    ) -> None:
        async def action(program: ProgramStream) -> None:
            await program.send(b"x")
            assert await program.receive() == b"x"

        use(action, argv)
        eventually(lambda: _has_ended(sandbox))

    def test_a_start_that_is_cancelled_leaves_no_program(
        self, server: Any, provider: VendorProvider[Any, Any], sandbox: Sandbox, stream: str
    ) -> None:
        before = server.requests.count("TaskExecStart")
        server.fault("TaskExecStart", "silent", times=1)
        argv = ("sh", "-c", "cat; echo ended >/tmp/ended")
        starting = Operation(self.vendor.run(provider, sandbox, argv, stream))
        eventually(lambda: server.requests.count("TaskExecStart") > before)
        starting.cancel()
        server.clear()
        eventually(lambda: _has_ended(sandbox))


def _has_ended(sandbox: Sandbox) -> bool:
    return sandbox.exec(["test", "-e", "/tmp/ended"]).result(30).returncode == 0
