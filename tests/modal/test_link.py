"""Commands over an agent in Modal's sandbox, while Modal and the way to it fail."""

from pathlib import Path

import pytest

from sandboxkit import Process, Sandbox, Session, errors
from tests.components import require_program
from tests.emulators._server import Server
from tests.hosted.vendor import eventually

SILENCE = 7.0
"""Seconds after which an agent that says nothing is given up."""
PATIENCE = 90.0


def lives(sandbox: Sandbox) -> None:
    assert sandbox.exec(["echo", "fine"]).result(PATIENCE).stdout == "fine\n"


def began(process: Process) -> Process:
    assert next(iter(process.stdout.lines())) == "up"
    return process


@pytest.mark.parametrize("call", ["TaskExecStdinWrite", "TaskExecStdioRead", "TaskExecStart"])
@pytest.mark.parametrize("kind", ["drop", "status", "http"])
def test_a_fault_that_passes_is_not_seen(
    server: Server, sandbox: Sandbox, call: str, kind: str
) -> None:
    server.fault(call, kind, times=2, status=502 if kind == "http" else "UNAVAILABLE")
    server.ask("forget")  # so that each of the calls is made again
    script = ["sh", "-c", "echo ran >>ran; cat ran"]
    assert sandbox.exec(script).result(PATIENCE).stdout == "ran\n"


def test_input_that_arrives_twice_is_read_once(server: Server, sandbox: Sandbox) -> None:
    server.set(repeats_writes=True)
    data = bytes(range(256)) * (8 << 12)
    for _ in range(5):
        server.fault("TaskExecStdinWrite", "drop", times=1, skip=1)
        script = ["sh", "-c", "echo ran >>ran; cat"]
        assert sandbox.exec(script, stdin=data).result(PATIENCE).stdout_bytes == data
    assert sandbox.exec(["cat", "ran"]).result(PATIENCE).stdout == "ran\n" * 5


def test_a_start_whose_input_arrives_twice_is_a_start(server: Server, session: Session) -> None:
    """The agent arrives as a program, without offsets: what follows it marks the copy."""
    server.set(repeats_writes=True)
    server.fault("TaskExecStdinWrite", "drop", times=1)
    sandbox = session.sandbox()
    data = bytes(range(256)) * (8 << 12)
    assert sandbox.exec(["cat"], stdin=data).result(PATIENCE).stdout_bytes == data
    assert server.requests.count("SandboxCreateV2") == 1


def test_a_sandbox_that_leaves_the_listings_before_it_ends(
    server: Server, session: Session
) -> None:
    sandbox = session.sandbox(lifetime=5).start().result(PATIENCE)
    process = began(sandbox.exec(["sh", "-c", "echo up; exec sleep 1000"]))
    server.set(linger=2.0)
    eventually(lambda: session.list().result(PATIENCE) == [])
    late = sandbox.exec(["true"]).exception(PATIENCE)
    gone = (errors.SandboxTerminatedError, errors.SandboxNotFoundError)
    assert late is None or isinstance(late, gone), late
    error = process.exception(PATIENCE)
    assert isinstance(error, errors.SandboxTerminatedError), repr(error)
    assert not error.by_command


@pytest.mark.parametrize("kind", ["reset", "stall", "silent"])
def test_a_command_that_cannot_be_sent_runs_at_most_once(
    server: Server, sandbox: Sandbox, kind: str
) -> None:
    server.fault("TaskExecStdinWrite", kind)
    process = sandbox.exec(["sh", "-c", "echo ran >>/workspace/ran"])
    error = process.exception(PATIENCE)
    if kind == "silent":  # it was sent, and its end is told on another call
        assert error is None
    else:
        assert isinstance(error, errors.OutcomeUnknownError), repr(error)
        assert not error.retryable
    server.clear()
    lives(sandbox)
    assert sandbox.exec(["sh", "-c", "cat ran || :"]).result(PATIENCE).stdout in ("", "ran\n")


def test_silence_during_a_command_is_not_a_timeout(server: Server, sandbox: Sandbox) -> None:
    process = began(sandbox.exec(["sh", "-c", "echo up; exec sleep 1000"], timeout=SILENCE + 20))
    server.ask("hush")
    error = process.exception(PATIENCE)
    assert isinstance(error, errors.OutcomeUnknownError), repr(error)
    assert not isinstance(error, errors.CommandTimeoutError)
    server.clear()
    lives(sandbox)


@pytest.mark.parametrize("end", ["timeout", "kill"])
def test_an_unanswered_kill_is_not_an_end(server: Server, sandbox: Sandbox, end: str) -> None:
    timeout = 3.0 if end == "timeout" else None
    process = began(sandbox.exec(["sh", "-c", "echo up; exec sleep 1000"], timeout=timeout))
    server.ask("hush")
    if end == "kill":
        process.kill()
    error = process.exception(PATIENCE)
    assert isinstance(error, errors.OutcomeUnknownError), repr(error)
    server.clear()
    lives(sandbox)
    # The agent kills it as soon as it hears of it.
    eventually(lambda: "1000" not in running(sandbox))


def test_the_keeper_ignores_what_a_command_sends_it(sandbox: Sandbox) -> None:
    require_program("pgrep")
    script = Path(__file__).with_name("signals_the_keeper.txt").read_text()
    assert sandbox.exec(["bash", "-c", script]).result(PATIENCE).returncode == 0
    lives(sandbox)


@pytest.mark.parametrize("status", [1, 124, 137])
def test_a_program_that_ends_the_first_process_is_scored(
    server: Server, sandbox: Sandbox, status: int
) -> None:
    """A tracer can let it exit with any status, or have it killed: 137. The SDK uses 124 and 137 itself."""
    process = began(sandbox.exec(["sh", "-c", "echo up; exec sleep 1000"]))
    server.ask("leave", sandbox_id=sandbox.id, status=status)
    for each in (process, sandbox.exec(["true"])):
        error = each.exception(PATIENCE)
        assert isinstance(error, errors.SandboxTerminatedError), repr(error)
        assert error.by_command


def running(sandbox: Sandbox) -> str:
    script = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"
    return sandbox.exec(["sh", "-c", script]).result(PATIENCE).stdout
