"""Terminals are kept for the next command: none fails for that, and none is left."""

import time

import pytest

from sandboxkit import (
    ProviderUnavailableError,
    Sandbox,
    SandboxNotFoundError,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.provider import Provider
from sandboxkit.providers.daytona import DaytonaProvider
from tests.daytona.conftest import TIMEOUT
from tests.daytona.test_faults import outcome
from tests.emulators._server import Server
from tests.hosted.kept_shells import KeptShells, Opened, said


@pytest.fixture
def sandbox(server: Server, session: Session) -> Sandbox:
    """One with a kept terminal; its calls are counted from here on."""
    sandbox = session.sandbox().start().result(30)
    assert said(sandbox) == "hello\n"
    server.clear()
    return sandbox


def opened(server: Server) -> int:
    """How many terminals were opened."""
    return sum(request.startswith("WS ") for request in server.requests)


class TestDaytona(KeptShells):
    """As on the others."""

    ours = "stty ra[w]"

    @pytest.fixture
    def opened(self, server: Server, sandbox: Sandbox) -> Opened:
        server.clear()
        return lambda: opened(server)

    @pytest.fixture
    def another(self, sandbox: Sandbox) -> Provider:
        return DaytonaProvider(timeout=TIMEOUT)


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


def test_a_sandbox_that_ends_while_nothing_runs(server: Server, sandbox: Sandbox) -> None:
    server.kill_sandboxes()
    error = outcome(sandbox.exec(["true"]))
    assert isinstance(error, SandboxTerminatedError | SandboxNotFoundError)


def test_unread_input_is_not_the_next_commands(server: Server, sandbox: Sandbox) -> None:
    for _ in range(5):
        assert sandbox.exec(["true"], stdin=b"x" * 100_000).result(30).returncode == 0
        result = sandbox.exec(["cat"], stdin=b"in").result(30)
        assert (result.stdout, result.returncode) == ("in", 0)
