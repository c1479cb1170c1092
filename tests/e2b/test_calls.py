"""What each thing costs in calls to E2B."""

import time

import pytest

from sandboxkit import CommandTimeoutError, Session
from tests.e2b.conftest import TIMEOUT
from tests.emulators._server import Server

START = "POST /process.Process/Start"
PROCESS = "POST /process.Process/"


def test_a_sandbox_is_one_call_and_one_to_make_its_directory(
    server: Server, session: Session
) -> None:
    session.sandbox().start().result(30)
    assert server.requests == ["POST /v2/sandboxes", START]


def test_a_command_is_one_call(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.clear()
    assert sandbox.exec(["true"]).result(30).returncode == 0
    assert server.requests == [START]


def test_a_kill_is_one_call_more(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.clear()
    with pytest.raises(CommandTimeoutError):
        sandbox.exec(["sleep", "1000"], timeout=0.5).result(30)
    assert server.requests == [START, START]


def test_an_input_is_one_call_a_mebibyte_and_one_for_its_end(
    server: Server, session: Session
) -> None:
    sandbox = session.sandbox().start().result(30)
    server.clear()
    result = sandbox.exec(["wc", "-c"], stdin=b"x" * (3 << 20)).result(30)
    assert result.stdout.strip() == str(3 << 20)
    wanted = [START, *[f"{PROCESS}SendInput"] * 3, f"{PROCESS}CloseStdin"]
    assert server.requests == wanted


def test_a_stop_is_one_call(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.clear()
    sandbox.stop().result(30)
    assert server.requests == [f"DELETE /sandboxes/{sandbox.id}"]


def test_a_quiet_command_outlives_the_deadline_of_calls(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    seconds = 3 * TIMEOUT
    started = time.monotonic()
    assert sandbox.exec(["sleep", str(seconds)]).result(60).returncode == 0
    assert time.monotonic() - started >= seconds
