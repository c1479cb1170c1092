"""Terminals are kept for the next command: none fails for that, and none is left."""

import time
from collections.abc import Callable

import pytest

from sandboxkit import (
    CommandTimeoutError,
    Operation,
    ProviderUnavailableError,
    Sandbox,
    SandboxNotFoundError,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.providers._hosted.kept import lines, scripts
from sandboxkit.providers.daytona import DaytonaProvider
from tests.daytona.conftest import TIMEOUT
from tests.daytona.test_faults import outcome
from tests.emulators._server import Server

OURS = "stty ra[w]"
"""In the command line of each of our shells; not in that of who looks for them."""


@pytest.fixture
def sandbox(server: Server, session: Session) -> Sandbox:
    """One with a kept terminal; its calls are counted from here on."""
    sandbox = session.sandbox().start().result(30)
    assert said(sandbox) == "hello\n"
    server.clear()
    return sandbox


def said(sandbox: Sandbox) -> str:
    """What a command says that must succeed and be quick."""
    operation = sandbox.exec(["echo", "hello"])
    assert outcome(operation) is None
    result = operation.result()
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def opened(server: Server) -> int:
    """How many terminals were opened."""
    return sum(request.startswith("WS ") for request in server.requests)


def eventually(true: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until it is."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_of_many_few_are_kept(server: Server, sandbox: Sandbox) -> None:
    for process in [sandbox.exec(["sleep", "0.5"]) for _ in range(20)]:
        assert process.result(60).returncode == 0
    assert opened(server) == 19
    eventually(lambda: server.terminals <= 8)
    assert said(sandbox) == "hello\n"
    assert opened(server) == 19


def test_none_is_kept_for_long(
    server: Server, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_IDLE_SECONDS", 0.2)
    assert said(sandbox) == "hello\n"
    eventually(lambda: server.terminals == 0)
    assert said(sandbox) == "hello\n"
    assert opened(server) == 1


def test_pings_are_answered_while_nothing_runs(server: Server, session: Session) -> None:
    server.ping_every(0.3)
    sandbox = session.sandbox()
    assert said(sandbox) == "hello\n"
    time.sleep(2)  # the server's patience ends after 0.6 s
    assert said(sandbox) == "hello\n"
    assert opened(server) == 1


@pytest.mark.parametrize("seconds", [0, 1.5])
def test_idle_connections_that_break_are_not_used(
    server: Server, sandbox: Sandbox, seconds: float
) -> None:
    server.break_connections()
    time.sleep(seconds)
    assert said(sandbox) == "hello\n"
    assert opened(server) == 1


@pytest.mark.parametrize("delivered", [False, True])
@pytest.mark.parametrize("seconds", [0, 1.5])
def test_a_connection_that_breaks_as_a_command_is_sent_runs_it_once_at_most(
    server: Server, sandbox: Sandbox, delivered: bool, seconds: float
) -> None:
    time.sleep(seconds)  # after a second a kept terminal is asked before
    server.cut_next_write(delivered=delivered)
    error = outcome(sandbox.exec(["sh", "-c", "echo ran >>/workspace/ran"]), 2 * TIMEOUT + 2)
    assert (error is None) == (seconds > 0), error
    assert error is None or isinstance(error, ProviderUnavailableError)
    ran = sandbox.exec(["sh", "-c", "cat /workspace/ran || :"]).result(30).stdout
    assert ran == "ran\n" if error is None else ran in ("", "ran\n")


def test_a_shell_that_no_longer_answers_is_not_used(server: Server, sandbox: Sandbox) -> None:
    stop = f"(sleep 0.3; pkill -STOP -f '{OURS}') >/dev/null 2>&1 &"
    sandbox.exec(["sh", "-c", stop]).result(30)
    time.sleep(1.5)  # so that it is asked
    assert said(sandbox) == "hello\n"
    assert opened(server) == 1


def test_a_sandbox_that_ends_while_nothing_runs(server: Server, sandbox: Sandbox) -> None:
    server.kill_sandboxes()
    error = outcome(sandbox.exec(["true"]))
    assert isinstance(error, SandboxTerminatedError | SandboxNotFoundError)


def test_what_a_command_left_behind_writes_to_no_other(server: Server, sandbox: Sandbox) -> None:
    noise = "(while echo noise && echo noise >&2; do sleep 0.01; done) & echo first"
    assert "first\n" in sandbox.exec(["sh", "-c", noise]).result(30).stdout
    for _ in range(30):
        assert said(sandbox) == "hello\n"
    assert sandbox.exec(["pkill", "-f", "echo nois[e]"]).result(30).returncode == 0
    assert opened(server) == 1


def test_readers_that_are_late_miss_no_command(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = scripts.SERVE.replace("while exec", "while sleep 0.1; exec")
    assert late != scripts.SERVE
    monkeypatch.setattr(scripts, "SERVE", late)
    sandbox = session.sandbox()
    for _ in range(4):
        assert said(sandbox) == "hello\n"


def test_after_a_kill_another_terminal_is_used(server: Server, sandbox: Sandbox) -> None:
    with pytest.raises(CommandTimeoutError):
        sandbox.exec(["sh", "-c", "setsid sleep 1000 & sleep 1000"], timeout=0.5).result(30)
    assert said(sandbox) == "hello\n"
    assert sandbox.exec(["pgrep", "-f", "sleep 100[0]"]).result(30).stdout == ""
    assert opened(server) == 1


def test_a_command_that_kills_our_shells(server: Server, sandbox: Sandbox) -> None:
    for process in [sandbox.exec(["sleep", "0.3"]) for _ in range(3)]:
        process.result(30)
    assert sandbox.exec(["pkill", "-9", "-f", OURS]).result(30).returncode == 137
    for _ in range(4):
        assert said(sandbox) == "hello\n"


def test_a_command_that_clears_the_temporary_files(
    server: Server, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = scripts.SERVE.replace("while exec", "while sleep 0.1; exec")
    monkeypatch.setattr(scripts, "SERVE", late)
    sandbox = session.sandbox()
    assert said(sandbox) == "hello\n"
    server.clear()
    sandbox.exec(["sh", "-c", "rm -rf /tmp/.s*"]).result(30)
    time.sleep(0.3)  # the readers find their pipes gone, and say nothing of it
    for _ in range(3):
        assert said(sandbox) == "hello\n"
    assert opened(server) == 0


def test_unread_input_is_not_the_next_commands(server: Server, sandbox: Sandbox) -> None:
    for _ in range(5):
        assert sandbox.exec(["true"], stdin=b"x" * 100_000).result(30).returncode == 0
        result = sandbox.exec(["cat"], stdin=b"in").result(30)
        assert (result.stdout, result.returncode) == ("in", 0)


def test_a_closed_provider_leaves_no_terminal(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    other = DaytonaProvider(timeout=TIMEOUT)
    with Session(other) as visitor:
        visited = visitor.from_id(str(sandbox.id)).result(30)
        for process in [visited.exec(["sleep", "0.3"]) for _ in range(3)]:
            process.result(30)
        assert server.terminals == 3
    Operation(other.aclose()).result(30)
    eventually(lambda: server.terminals == 0)
    assert server.alive == [sandbox.id]
    found = sandbox.exec(["sh", "-c", "ls -d /tmp/.sandboxkit-*"]).result(30).stdout
    assert found.count("\n") == 1  # its own
