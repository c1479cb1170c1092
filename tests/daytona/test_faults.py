"""Whatever goes wrong on the way: a typed error or success in time, and no sandbox left."""

import time
from typing import Any

import pytest

from sandboxkit import Sandbox, Session, errors
from tests.daytona.server import Daytona
from tests.emulators._answers import Row, is_raised
from tests.emulators._server import Server
from tests.hosted.faults import outcome

DEADLINE = Daytona.timeout + 10


def test_a_sandbox_that_stops_without_a_message(server: Server, session: Session) -> None:
    sandbox = session.sandbox()
    process = sandbox.exec(["sh", "-c", "echo up; exec sleep 1000"])
    assert next(iter(process.stdout.lines())) == "up"
    server.ask("stop_silently")
    for each in (process, sandbox.exec(["true"])):
        error = outcome(each, 30)
        assert isinstance(error, errors.SandboxTerminatedError), repr(error)
        assert error.by_command
    sandbox.stop().result(30)


def test_a_start_whose_connection_breaks_at_any_moment(server: Server, session: Session) -> None:
    for number in range(12):
        sandbox = session.sandbox()
        start = sandbox.start()
        time.sleep(0.06 + 0.02 * number)  # the moment is what varies
        server.break_connections()
        error = outcome(start, 20)
        assert error is None or isinstance(error, errors.ProviderUnavailableError), repr(error)
        sandbox.stop().result(30)
        assert server.alive == []


def test_a_profile_of_the_image_that_ends_shells_is_named(server: Server, session: Session) -> None:
    server.set(profile="exit 3")
    error = outcome(session.sandbox().start(), DEADLINE)
    assert isinstance(error, errors.SandboxStartError)
    assert not error.retryable
    assert "/etc/profile" in str(error)
    assert "status 3" in str(error)
    assert server.alive == []


def test_a_failed_start_on_a_terminal_has_no_status(sandbox: Sandbox) -> None:
    for argv, cwd in ((["/no/such"], None), (["true"], "/no/such")):
        error = outcome(sandbox.exec(argv, cwd=cwd, pty=True), DEADLINE)
        assert isinstance(error, errors.CommandStartError)
        assert error.errno == 2


def test_arguments_that_are_too_long_are_not_started(sandbox: Sandbox) -> None:
    env = {f"V{number}": "x" * 100_000 for number in range(15)}
    error = outcome(sandbox.exec(["true", *["x" * 100_000] * 10], env=env), 30)
    assert isinstance(error, errors.CommandStartError)
    assert error.errno == 7


ENDS = Daytona().ends


@pytest.mark.parametrize(
    ("end", "row"), ENDS, ids=[f"{end['state']}-{end['raised']}" for end, _ in ENDS]
)
def test_a_sandbox_that_does_not_start_is_the_error_of_the_table(
    server: Server, session: Session, end: dict[str, Any], row: Row
) -> None:
    server.set(end=[end["state"], end["fields"]])
    error = outcome(session.sandbox().start(), DEADLINE)
    assert is_raised(error, row), repr(error)
    assert server.alive == []


def test_an_error_names_the_request_and_the_remedy(server: Server, session: Session) -> None:
    message = {"statusCode": 400, "message": "Snapshot s1 is build_failed"}
    server.fault("POST /api/sandbox", "status", times=1, status=400, body=message)
    text = str(outcome(session.sandbox(image="snapshot:daytona-small").start(), DEADLINE))
    assert "snapshot:daytona-small" in text
    assert "Snapshot s1 is build_failed" in text
    assert "build it again" in text


@pytest.mark.parametrize("user", ["root", "nobody2"])
def test_a_user_for_one_command(sandbox: Sandbox, user: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=user):
        sandbox.exec(["true"], user=user).result(30)
    assert sandbox.exec(["id", "-un"], user="daytona").result(30).stdout == "daytona\n"
