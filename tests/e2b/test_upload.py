"""The agent's upload beside the request that starts it: a round trip less, and none of its failures costs a run."""

import pytest

from sandboxkit import Operation, OutcomeUnknownError, ProviderUnavailableError, Session
from sandboxkit.provider import FirstCommand
from sandboxkit.providers.e2b import E2BProvider
from sandboxkit.types import Command, SandboxSpec
from tests.emulators._server import Server

UPLOAD, CREATE = "POST /files", "POST /v2/sandboxes"
START, STREAMED = "POST /process.Process/Start", "POST /process.Process/StreamInput"
RUNS = ["sh", "-c", "echo x >>runs; cat runs; ls -A /tmp"]


@pytest.fixture(autouse=True)
def warmed(session: Session, server: Server) -> None:
    """Let a first start find out whether streamed input reaches the server's sandboxes."""
    session.run(["true"]).result(60)
    server.clear()


def test_a_start_sends_the_agent_beside_the_request_that_waits_for_it(
    server: Server, session: Session
) -> None:
    sandbox = session.sandbox()
    assert sandbox.exec(RUNS).result(60).stdout == "x\n"  # and the uploaded file is gone
    asked = [each for each in server.requests if not each.startswith("DELETE")]
    assert asked[0] == CREATE
    assert sorted(asked[1:3]) == [UPLOAD, START]
    assert asked.count(START) == 1


def test_secrets_are_sent_on_the_stream_and_so_is_the_agent(
    server: Server, session: Session
) -> None:
    sandbox = session.sandbox(secrets={"KEY": "a secret"})
    assert sandbox.exec(["sh", "-c", 'echo "$KEY"']).result(60).stdout == "a secret\n"
    assert UPLOAD not in server.requests


@pytest.mark.parametrize(("status", "uploads"), [(404, 1), (413, 1), (429, 2), (500, 2)])
def test_a_server_that_refuses_uploads_gets_no_more_and_one_that_was_busy_does(
    server: Server, session: Session, status: int, uploads: int
) -> None:
    times = {"times": 1} if uploads == 2 else {}
    server.fault(UPLOAD, "status", body="no", status=status, **times)
    for _ in range(2):
        assert session.sandbox().exec(RUNS).result(60).stdout == "x\n"
    assert server.requests.count(UPLOAD) == uploads


def test_an_upload_whose_answer_is_lost_is_a_start_all_the_same(
    server: Server, session: Session
) -> None:
    server.fault(UPLOAD, "drop", times=1)
    assert session.sandbox().exec(RUNS).result(60).stdout == "x\n"


@pytest.mark.parametrize("kind", ["reset", "stall", "status"])
def test_an_upload_that_is_lost_ends_the_start_and_leaves_nothing(
    server: Server, kind: str
) -> None:
    server.fault(UPLOAD, kind, status=502)
    provider = E2BProvider(timeout=4.0)
    provider.account.streams = True
    first = FirstCommand(Command(("true",)))
    try:
        with pytest.raises(ProviderUnavailableError, match="upload"):
            Operation(provider.create(SandboxSpec(lifetime=600), first)).result(60)
        assert first.sent  # it may have arrived: only a refusal proves the opposite
        assert server.alive == []
    finally:
        Operation(provider.aclose()).result(60)


def test_a_lost_upload_leaves_the_outcome_of_the_first_command_unknown(
    server: Server, session: Session
) -> None:
    server.fault(UPLOAD, "reset")
    with pytest.raises(OutcomeUnknownError):
        session.sandbox().exec(["true"]).result(60)
