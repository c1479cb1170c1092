"""What each thing costs in calls to Daytona."""

import time

import pytest

from sandboxkit import CommandTimeoutError, Sandbox, Session
from tests.daytona.conftest import TIMEOUT
from tests.emulators._server import Server
from tests.hosted.kept_shells import settle

TERMINAL, EXECUTE = "WS process/pty/create-connect", "POST process/execute"


def asked(server: Server, sandbox: Sandbox) -> list[str]:
    """The requests, without what leads to the sandbox."""
    return [request.replace(f"/toolbox/{sandbox.id}/", "") for request in server.requests]


def test_a_command_with_input_is_one_call(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.clear()
    result = sandbox.exec(["sh", "-c", "cat; echo err >&2"], stdin=b"in").result(30)
    assert (result.stdout, result.stderr) == ("in", "err\n")
    assert asked(server, sandbox) == [TERMINAL]


def test_a_kill_is_one_call_more(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.clear()
    with pytest.raises(CommandTimeoutError):
        sandbox.exec(["sleep", "1000"], timeout=1).result(30)
    assert asked(server, sandbox) == [TERMINAL, EXECUTE]


def test_the_next_commands_are_no_calls(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.clear()
    for number in range(5):
        assert sandbox.exec(["echo", str(number)]).result(30).stdout == f"{number}\n"
        settle(sandbox)
    assert asked(server, sandbox) == [TERMINAL]


def test_of_a_large_file_only_the_transfer_is_a_call(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    for size, write, read in (
        (1000, [TERMINAL], []),
        (1 << 20, ["POST files/upload-v2"], ["GET files/download"]),
    ):
        server.clear()
        sandbox.write_file("/workspace/file", b"x" * size).result(30)
        assert asked(server, sandbox) == write
        server.clear()
        assert sandbox.read_file("/workspace/file").result(30) == b"x" * size
        assert asked(server, sandbox) == read


def test_a_stop_is_one_call(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.clear()
    sandbox.stop().result(30)
    assert server.requests == [f"DELETE /api/sandbox/{sandbox.id}"]


def test_a_quiet_command_outlives_the_deadline_of_calls(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    seconds = 2 * TIMEOUT
    started = time.monotonic()
    assert sandbox.exec(["sleep", str(seconds)]).result(60).returncode == 0
    assert time.monotonic() - started >= seconds


def test_a_command_leaves_no_file(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    sandbox.exec(["true"]).result(30)
    assert sandbox.exec(["ls", "-A", "/workspace"]).result(30).stdout == ""
    assert ".bash_history" not in sandbox.exec(["sh", "-c", 'ls -A "$HOME"']).result(30).stdout
