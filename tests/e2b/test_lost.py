"""What is E2B's own: its daemon and the two calls of a program, which fail apart from each other."""

import os
import time
from unittest import mock

import pytest

from sandboxkit import ProviderUnavailableError, Sandbox, Session
from sandboxkit.providers.e2b import E2BProvider
from tests.emulators._server import Server

START, STREAMED = "/process.Process/Start", "StreamInput"
_COUNTS = 'echo started >>/workspace/starts; for i in $(seq 200); do echo "$i"; sleep 0.02; done'
_COUNTED = "".join(f"{index}\n" for index in range(1, 201))


@pytest.mark.parametrize("call", [START, STREAMED])
@pytest.mark.parametrize("kind", ["reset", "drop", "reset_mid_body", "stall"])
def test_a_reconnection_may_fail_first(
    server: Server, sandbox: Sandbox, call: str, kind: str
) -> None:
    running = sandbox.exec(["sh", "-c", _COUNTS])
    assert next(iter(running.stdout.lines())) == "1"
    server.fault(call, kind, times=1)
    server.break_connections()
    result = running.result(60)
    assert (result.returncode, result.stdout) == (0, _COUNTED)
    assert sandbox.read_file("/workspace/starts").result(30) == b"started\n"


def test_a_refused_fork_does_not_end_the_sandbox(
    server: Server, sandbox: Sandbox, other: Session
) -> None:
    server.set(unforkable="resource temporarily unavailable")
    assert sandbox.exec(["echo", "as before"]).result(30).stdout == "as before\n"
    error = other.from_id(str(sandbox.id)).result(30).exec(["true"]).exception(30)
    assert isinstance(error, ProviderUnavailableError)
    assert "resource temporarily unavailable" in str(error)
    assert len(str(error)) < 1000  # the daemon repeats all of the command line


@pytest.mark.parametrize("kind", ["reset", "drop", "stall", "status"])
def test_a_failed_description_is_retried(
    server: Server, sandbox: Sandbox, other: Session, kind: str
) -> None:
    theirs = other.from_id(str(sandbox.id)).result(30)
    server.fault(f"GET /sandboxes/{sandbox.id}", kind, times=1)
    error = theirs.exec(["true"]).exception(30)
    assert type(error) is ProviderUnavailableError
    assert theirs.exec(["echo", "there"]).result(30).stdout == "there\n"


@pytest.mark.parametrize("call", [START, STREAMED])
@pytest.mark.parametrize("kind", ["reset", "drop", "reset_mid_body", "stall", "stall_body"])
def test_a_broken_first_link_leaves_a_working_sandbox_or_none(
    server: Server, session: Session, call: str, kind: str
) -> None:
    server.fault(call, kind, times=1)
    sandbox = session.sandbox(command=["sleep", "1000"])
    started = time.monotonic()
    error = sandbox.start().exception(90)
    assert time.monotonic() - started < 80
    if error is None:
        assert sandbox.exec(["echo", "there"]).result(30).stdout == "there\n"
    else:
        assert isinstance(error, ProviderUnavailableError), repr(error)
        assert error.retryable
        assert server.alive == []


def test_an_unreachable_sandbox_is_a_retryable_error(server: Server) -> None:
    with (
        mock.patch.dict(os.environ, {"E2B_SANDBOX_URL": "http://127.0.0.1:9"}),
        Session(E2BProvider(timeout=10)) as session,
    ):
        error = session.sandbox().start().exception(30)
    assert isinstance(error, ProviderUnavailableError), repr(error)
    assert error.retryable
    assert server.alive == []


def test_a_profile_that_exits_reaches_no_command(sandbox: Sandbox) -> None:
    names = ".profile .bashrc .bash_profile .bash_login .zshenv .kshrc .shrc"
    script = f'for name in {names}; do echo "exit 3" > "$HOME/$name"; done'
    sandbox.exec(["sh", "-c", script], check=True).result(30)
    assert sandbox.exec(["sh", "-c", "exit 5"]).result(30).returncode == 5
    sandbox.write_file("/workspace/a", b"1").result(30)
    assert sandbox.read_file("/workspace/a").result(30) == b"1"


def test_retry_after_as_a_date_counts_from_the_servers_clock(
    server: Server, session: Session
) -> None:
    begin = "Sat, 01 Jan 2000 00:00:0"
    skewed = {"Date": f"{begin}0 GMT", "Retry-After": f"{begin}9 GMT"}
    server.fault("GET /v2/sandboxes", "status", status=429, headers=skewed)
    error = session.list().exception(30)
    assert isinstance(error, ProviderUnavailableError)
    # Uvicorn sends a date of its own, too: ours or its, never a negative time.
    assert error.retry_after in (0.0, 9.0)
