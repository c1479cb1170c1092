"""What each thing costs in calls to Daytona."""

import pytest

from sandboxkit import (
    CommandTimeoutError,
    ConfigurationError,
    Operation,
    Sandbox,
    SandboxStartError,
    Session,
)
from sandboxkit.providers.daytona import DaytonaProvider
from tests.emulators._server import Server

TERMINAL = "WS process/pty/create-connect"


def asked(server: Server, sandbox: Sandbox) -> list[str]:
    """The requests, without what leads to the sandbox."""
    return [request.replace(f"/toolbox/{sandbox.id}/", "") for request in server.requests]


def test_a_start_makes_one_creation_and_one_terminal(server: Server, session: Session) -> None:
    server.clear()
    sandbox = session.sandbox(command=["sleep", "1000"], env={"A": "1"}).start().result(30)
    made, *described, terminal = asked(server, sandbox)
    assert (made, terminal) == ("POST /api/sandbox", TERMINAL)
    assert set(described) == {f"GET /api/sandbox/{sandbox.id}"}


def test_a_start_does_not_ask_for_what_the_creation_answered(
    server: Server, session: Session
) -> None:
    server.keep_warm()
    sandbox = session.sandbox().start().result(30)
    assert asked(server, sandbox) == ["POST /api/sandbox", TERMINAL]
    assert sandbox.exec(["echo", "hello"]).result(30).stdout == "hello\n"


def test_a_warm_sandbox_that_failed_to_start_is_no_start(server: Server, session: Session) -> None:
    server.keep_warm()
    server.end_next_start("error", {"errorReason": "the runner is full"})
    with pytest.raises(SandboxStartError, match="the runner is full"):
        session.sandbox().start().result(30)


def test_work_in_the_sandbox_makes_no_request(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.clear()
    result = sandbox.exec(["sh", "-c", "cat; echo err >&2"], stdin=b"in").result(30)
    assert (result.stdout, result.stderr) == ("in", "err\n")
    for size in (1000, 1 << 20):
        sandbox.write_file("/workspace/file", b"x" * size).result(30)
        assert sandbox.read_file("/workspace/file").result(30) == b"x" * size
    with pytest.raises(CommandTimeoutError):
        sandbox.exec(["sleep", "1000"], timeout=1).result(30)
    assert server.requests == []


def test_attaching_makes_one_lookup_and_one_terminal(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    with Session("daytona") as other:
        found = other.from_id(str(sandbox.id)).result(30)
        server.clear()
        assert found.exec(["echo", "hello"]).result(30).stdout == "hello\n"
        assert asked(server, sandbox).count(TERMINAL) == 1
        assert len(server.requests) <= 2


def test_a_stop_makes_one_request(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.clear()
    sandbox.stop().result(30)
    assert server.requests == [f"DELETE /api/sandbox/{sandbox.id}"]


def test_a_command_leaves_no_file(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    sandbox.exec(["true"]).result(30)
    assert sandbox.exec(["ls", "-A", "/workspace"]).result(30).stdout == ""
    assert ".bash_history" not in sandbox.exec(["sh", "-c", 'ls -A "$HOME"']).result(30).stdout


def test_a_closed_provider_says_so(server: Server) -> None:
    provider = DaytonaProvider()
    Operation(provider.aclose()).result(30)
    with pytest.raises(ConfigurationError, match="closed"):
        Session(provider).list().result(30)
    assert server.requests == []
