"""Connections break under commands: each runs once, and its output is exact all the same."""

import os
import time

import pytest

from sandboxkit import (
    CommandTimeoutError,
    Process,
    Sandbox,
    SandboxNotFoundError,
    SandboxTerminatedError,
    Session,
)
from tests.components import require_program
from tests.daytona.test_faults import outcome
from tests.daytona.test_stream import eventually
from tests.emulators._server import Server

LINES = 300
COUNT = f"echo ran >>/workspace/ran; for i in $(seq {LINES}); do echo $i; sleep 0.01; done"
EXPECTED = "".join(f"{number}\n" for number in range(1, LINES + 1))


@pytest.fixture
def sandbox(server: Server, session: Session) -> Sandbox:
    """One that runs; its calls are counted from here on."""
    sandbox = session.sandbox().start().result(30)
    server.clear()
    return sandbox


def opened(server: Server) -> int:
    """How many terminals were opened."""
    return sum(request.startswith("WS ") for request in server.requests)


def ran(sandbox: Sandbox) -> str:
    """What the commands have noted."""
    return sandbox.exec(["cat", "/workspace/ran"]).result(60).stdout


def test_a_connection_that_breaks_five_times_under_a_command(
    server: Server, sandbox: Sandbox
) -> None:
    process = sandbox.exec(["sh", "-c", COUNT])
    lines = iter(process.stdout.lines())
    for _ in range(5):
        for _ in range(LINES // 6):
            next(lines)
        server.break_connections()
    result = process.result(60)
    assert (result.stdout, result.returncode) == (EXPECTED, 0)
    assert ran(sandbox) == "ran\n"
    assert opened(server) >= 3


def test_many_commands_over_a_connection_that_breaks(server: Server, sandbox: Sandbox) -> None:
    commands = [sandbox.exec(["sh", "-c", COUNT]) for _ in range(10)]
    for _ in range(4):
        time.sleep(0.7)  # that it breaks at any moment is the point
        server.break_connections()
    for process in commands:
        assert process.result(60).stdout == EXPECTED
    assert ran(sandbox) == "ran\n" * 10


def test_a_slow_reader_misses_nothing(server: Server, sandbox: Sandbox) -> None:
    data = os.urandom(1 << 20)
    sandbox.write_file("/workspace/data", data).result(60)
    server.find_slow(4)
    script = "for i in 1 2 3 4 5 6 7 8; do cat /workspace/data; done"
    assert sandbox.exec(["sh", "-c", script]).result(60).stdout_bytes == data * 8
    assert opened(server) >= 4


def test_files_go_over_a_connection_that_breaks(server: Server, sandbox: Sandbox) -> None:
    data = os.urandom(8 << 20)
    writing = sandbox.write_file("/workspace/data", data)
    time.sleep(0.1)
    server.break_connections()
    writing.result(60)
    reading = sandbox.read_file("/workspace/data")
    time.sleep(0.1)
    server.break_connections()
    assert reading.result(60) == data


@pytest.mark.parametrize("delivered", [False, True])
def test_a_connection_that_breaks_as_a_command_is_sent_runs_it_once(
    server: Server, sandbox: Sandbox, delivered: bool
) -> None:
    server.cut_next_write(delivered=delivered)
    result = sandbox.exec(["sh", "-c", "echo ran >>/workspace/ran; echo done"]).result(60)
    assert result.stdout == "done\n"
    assert ran(sandbox) == "ran\n"


def test_a_broken_idle_connection_is_reopened(server: Server, sandbox: Sandbox) -> None:
    server.break_connections()
    assert sandbox.exec(["echo", "hello"]).result(60).stdout == "hello\n"
    assert opened(server) == 1


def test_pings_are_answered_while_nothing_runs(server: Server, session: Session) -> None:
    server.ping_every(0.3)
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
        assert server.terminals == 2
    eventually(lambda: server.terminals == 1)


def test_a_replaced_connection_leaves_no_terminal(server: Server, sandbox: Sandbox) -> None:
    for _ in range(3):
        server.break_connections()
        assert sandbox.exec(["echo", "hello"]).result(60).stdout == "hello\n"
    eventually(lambda: server.terminals == 1)


def test_a_sandbox_that_ends_while_nothing_runs(server: Server, sandbox: Sandbox) -> None:
    server.kill_sandboxes()
    error = outcome(sandbox.exec(["true"]), 20)
    assert isinstance(error, SandboxTerminatedError | SandboxNotFoundError)


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
    server.login_with("exit 3")
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
