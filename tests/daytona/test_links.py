"""Connections break under commands: each runs once, and its output is exact all the same."""

import os
import time

import pytest

from sandboxkit import CommandTimeoutError, Process, Sandbox, SandboxTerminatedError, Session
from tests.components import require_program
from tests.emulators._server import Server
from tests.hosted.faults import outcome
from tests.hosted.vendor import eventually


def opened(server: Server) -> int:
    """How many terminals were opened."""
    return sum(request.startswith("WS ") for request in server.requests)


def test_a_slow_reader_misses_nothing(server: Server, sandbox: Sandbox) -> None:
    data = os.urandom(1 << 20)
    sandbox.write_file("/workspace/data", data).result(60)
    server.set(slow=4)
    script = "for i in 1 2 3 4 5 6 7 8; do cat /workspace/data; done"
    assert sandbox.exec(["sh", "-c", script]).result(60).stdout_bytes == data * 8
    assert opened(server) >= 4


@pytest.mark.parametrize("delivered", [False, True])
def test_a_connection_that_breaks_as_a_command_is_sent_runs_it_once(
    server: Server, sandbox: Sandbox, delivered: bool
) -> None:
    server.set(cut=delivered)
    result = sandbox.exec(["sh", "-c", "echo ran >>/workspace/ran; echo done"]).result(60)
    assert result.stdout == "done\n"
    assert sandbox.read_file("/workspace/ran").result(60) == b"ran\n"


def test_pings_are_answered_while_nothing_runs(server: Server, session: Session) -> None:
    server.ask("pings", seconds=0.3)
    sandbox = session.sandbox().start().result(30)
    time.sleep(2)  # the server's patience ends after 0.6 s
    server.clear()
    assert sandbox.exec(["echo", "hello"]).result(60).stdout == "hello\n"
    assert opened(server) == 0


def test_a_kill_over_a_connection_that_breaks(server: Server, sandbox: Sandbox) -> None:
    require_program("pgrep")
    process: Process = sandbox.exec(["sh", "-c", "echo up; exec sleep 1000"], timeout=3)
    assert next(iter(process.stdout.lines())) == "up"
    server.break_connections()
    assert isinstance(process.exception(60), CommandTimeoutError)
    assert sandbox.exec(["pgrep", "-f", "sleep 100[0]"]).result(60).stdout == ""


def test_closing_leaves_no_terminal(server: Server, sandbox: Sandbox) -> None:
    with Session("daytona") as other:
        found = other.from_id(str(sandbox.id)).result(30)
        assert found.exec(["echo", "hello"]).result(30).stdout == "hello\n"
        assert server.state["terminals"] == 2
    eventually(lambda: server.state["terminals"] == 1)


def test_a_replaced_connection_leaves_no_terminal(server: Server, sandbox: Sandbox) -> None:
    for _ in range(3):
        server.break_connections()
        assert sandbox.exec(["echo", "hello"]).result(60).stdout == "hello\n"
    eventually(lambda: server.state["terminals"] == 1)


def test_a_program_that_ends_the_agent_is_scored(server: Server, sandbox: Sandbox) -> None:
    require_program("pgrep")
    script = "kill -9 $(pgrep -f 'sandboxkit-agent.*besid[e]'); sleep 1000"
    error = outcome(sandbox.exec(["sh", "-c", script]), 60)
    assert isinstance(error, SandboxTerminatedError)


@pytest.mark.parametrize("signal", [9, 15])
def test_a_program_that_ends_the_daemon_is_scored(
    server: Server, sandbox: Sandbox, signal: int
) -> None:
    require_program("pgrep")
    script = f"kill -{signal} $(pgrep -f '[p]ython3 -I -S'); sleep 1000"
    error = outcome(sandbox.exec(["sh", "-c", script]), 60)
    assert isinstance(error, SandboxTerminatedError)
    assert error.by_command
    later = outcome(sandbox.exec(["true"]), 10)
    assert isinstance(later, SandboxTerminatedError)
    assert later.by_command


def test_a_program_that_breaks_the_profile_is_scored(server: Server, sandbox: Sandbox) -> None:
    process = sandbox.exec(["sh", "-c", "echo up; exec sleep 1000"])
    assert next(iter(process.stdout.lines())) == "up"
    server.set(profile="exit 3")
    server.break_connections()
    for each in (process, sandbox.exec(["true"])):
        error = outcome(each, 60)
        assert isinstance(error, SandboxTerminatedError)
        assert error.by_command


def test_unread_input_does_not_reach_the_next_command(server: Server, sandbox: Sandbox) -> None:
    for _ in range(5):
        assert sandbox.exec(["true"], stdin=b"x" * 100_000).result(30).returncode == 0
        result = sandbox.exec(["cat"], stdin=b"in").result(30)
        assert (result.stdout, result.returncode) == ("in", 0)
