"""What is E2B's own: its daemon and the two calls of a program, which fail apart from each other."""

import os
import time
from unittest import mock

import pytest

from sandboxkit import (
    ConfigurationError,
    Operation,
    ProviderUnavailableError,
    SandboxError,
    Session,
)
from sandboxkit.providers.e2b import E2BProvider
from tests.e2b.server import E2B, E2BServer
from tests.emulators._server import Server

START, STREAMED = "/process.Process/Start", "StreamInput"
_COUNTS = 'echo started >>/workspace/starts; for i in $(seq 200); do echo "$i"; sleep 0.02; done'
_COUNTED = "".join(f"{index}\n" for index in range(1, 201))


@pytest.mark.parametrize("call", [START, STREAMED])
@pytest.mark.parametrize("kind", ["reset", "drop", "reset_mid_body", "stall"])
def test_a_reconnection_may_fail_first(
    server: E2BServer, session: Session, call: str, kind: str
) -> None:
    sandbox = session.sandbox().start().result(30)
    running = sandbox.exec(["sh", "-c", _COUNTS])
    assert next(iter(running.stdout.lines())) == "1"
    server.fault(call, kind, times=1)
    server.break_connections()
    result = running.result(60)
    assert (result.returncode, result.stdout) == (0, _COUNTED)
    assert sandbox.read_file("/workspace/starts").result(30) == b"started\n"


def test_a_refused_fork_does_not_end_the_sandbox(server: E2BServer, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.refuse_to_fork("resource temporarily unavailable")
    assert sandbox.exec(["echo", "as before"]).result(30).stdout == "as before\n"
    provider = E2BProvider(timeout=E2B.timeout)
    with Session(provider) as other:
        error = other.from_id(str(sandbox.id)).result(30).exec(["true"]).exception(30)
    assert isinstance(error, ProviderUnavailableError)
    assert "resource temporarily unavailable" in str(error)
    assert len(str(error)) < 1000  # the daemon repeats all of the command line
    Operation(provider.aclose()).result(30)
    server.clear()


@pytest.mark.parametrize("kind", ["reset", "drop", "stall", "status"])
def test_a_failed_description_is_retried(server: E2BServer, session: Session, kind: str) -> None:
    sandbox = session.sandbox().start().result(30)
    provider = E2BProvider(timeout=E2B.timeout)
    with Session(provider) as other:
        theirs = other.from_id(str(sandbox.id)).result(30)
        server.fault(f"GET /sandboxes/{sandbox.id}", kind, times=1)
        error = theirs.exec(["true"]).exception(30)
        assert type(error) is ProviderUnavailableError
        assert theirs.exec(["echo", "there"]).result(30).stdout == "there\n"
    Operation(provider.aclose()).result(30)


@pytest.mark.parametrize("call", [START, STREAMED])
@pytest.mark.parametrize("kind", ["reset", "drop", "reset_mid_body", "stall", "stall_body"])
def test_a_broken_first_link_leaves_a_working_sandbox_or_none(
    server: E2BServer, session: Session, call: str, kind: str
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


def test_a_profile_that_exits_reaches_no_command(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    names = ".profile .bashrc .bash_profile .bash_login .zshenv .kshrc .shrc"
    script = f'for name in {names}; do echo "exit 3" > "$HOME/$name"; done'
    sandbox.exec(["sh", "-c", script], check=True).result(30)
    assert sandbox.exec(["sh", "-c", "exit 5"]).result(30).returncode == 5
    sandbox.write_file("/workspace/a", b"1").result(30)
    assert sandbox.read_file("/workspace/a").result(30) == b"1"


def test_a_daemon_that_is_too_old_is_refused_and_nothing_is_left(
    server: Server, session: Session
) -> None:
    error = session.sandbox(image="old").start().exception(30)
    assert isinstance(error, SandboxError)
    assert "envd 0.2.9" in str(error)
    assert "0.2.10" in str(error)
    assert server.alive == []


def test_retry_after_as_a_date_counts_from_the_servers_clock(
    server: Server, session: Session
) -> None:
    skewed = {
        "Date": "Sat, 01 Jan 2000 00:00:00 GMT",
        "Retry-After": "Sat, 01 Jan 2000 00:00:09 GMT",
    }
    server.fault("GET /v2/sandboxes", "status", status=429, headers=skewed)
    error = session.list().exception(30)
    assert isinstance(error, ProviderUnavailableError)
    # Uvicorn sends a date of its own, too: ours or its, never a negative time.
    assert error.retry_after in (0.0, 9.0)


def test_an_unknown_user_is_refused(server: Server, session: Session) -> None:
    with pytest.raises(ConfigurationError, match="nobody-here"):
        session.sandbox().exec(["true"], user="nobody-here").result(30)
