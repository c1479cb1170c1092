"""What each thing costs in calls to Daytona beside what each vendor has to show."""

import pytest

from sandboxkit import ConfigurationError, Operation, SandboxStartError, Session
from sandboxkit.providers.daytona import DaytonaProvider
from tests.emulators._server import Server


def test_a_start_does_not_ask_for_what_the_creation_answered(
    server: Server, session: Session
) -> None:
    server.set(warm=True)
    sandbox = session.sandbox().start().result(30)
    terminal = f"WS /toolbox/{sandbox.id}/process/pty/create-connect"
    assert server.requests == ["POST /api/sandbox", terminal]
    assert sandbox.exec(["echo", "hello"]).result(30).stdout == "hello\n"


def test_a_warm_sandbox_that_failed_to_start_is_no_start(server: Server, session: Session) -> None:
    server.set(warm=True)
    server.set(end=["error", {"errorReason": "the runner is full"}])
    with pytest.raises(SandboxStartError, match="the runner is full"):
        session.sandbox().start().result(30)


def test_a_closed_provider_says_so(server: Server) -> None:
    provider = DaytonaProvider()
    Operation(provider.aclose()).result(30)
    with pytest.raises(ConfigurationError, match="closed"):
        Session(provider).list().result(30)
    assert server.requests == []
