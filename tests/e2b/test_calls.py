"""What each thing costs in calls to E2B."""

import pytest

from sandboxkit import CommandTimeoutError, Operation, Session
from sandboxkit.providers.e2b import E2BProvider
from tests.e2b.server import E2B
from tests.emulators._server import Server

PROCESS = "POST /process.Process/"
WAY = [f"{PROCESS}Start", f"{PROCESS}StreamInput"]


def test_a_start_makes_one_api_request_and_two_to_the_sandbox(
    server: Server, session: Session
) -> None:
    session.sandbox(command=["sleep", "1000"]).start().result(30)
    assert server.requests == ["POST /v2/sandboxes", *WAY]


def test_commands_and_files_make_no_request(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.clear()
    assert sandbox.exec(["wc", "-c"], stdin=b"x" * (3 << 20)).result(30).stdout == "3145728\n"
    with pytest.raises(CommandTimeoutError):
        sandbox.exec(["sleep", "1000"], timeout=0.5).result(30)
    sandbox.write_file("/workspace/file", b"there").result(30)
    assert sandbox.read_file("/workspace/file").result(30) == b"there"
    assert server.requests == []


def test_attaching_makes_one_api_request_and_two_to_the_sandbox(
    server: Server, session: Session
) -> None:
    sandbox = session.sandbox().start().result(30)
    server.clear()
    provider = E2BProvider(timeout=E2B.timeout)
    with Session(provider) as other:
        theirs = other.from_id(str(sandbox.id)).result(30)
        found = f"GET /sandboxes/{sandbox.id}"
        asked = server.requests
        assert set(asked) == {found}
        server.clear()
        theirs.exec(["true"]).result(30)
        assert [request for request in server.requests if request != found] == WAY
    Operation(provider.aclose()).result(30)


def test_a_stop_makes_one_request(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.clear()
    sandbox.stop().result(30)
    assert server.requests == [f"DELETE /sandboxes/{sandbox.id}"]
