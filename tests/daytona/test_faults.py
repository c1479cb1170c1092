"""Whatever goes wrong on the way: a typed error or success in time, and no sandbox left."""

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar
from unittest import mock

import pytest

from sandboxkit import (
    AuthenticationError,
    CapacityError,
    CommandStartError,
    Operation,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.providers.daytona import DaytonaProvider
from tests.daytona.conftest import TIMEOUT
from tests.emulators._server import Server

T = TypeVar("T")
HTML = "<html>Bad Gateway</html>"


def status(code: int, body: Any, **options: Any) -> dict[str, Any]:
    """The fault that answers so."""
    return {"kind": "status", "status": code, "body": body, **options}


FAULTS: list[tuple[dict[str, Any], type[SandboxError]]] = [
    (status(401, {"message": "Invalid credentials"}), AuthenticationError),
    (status(403, {"message": "Forbidden resource"}), AuthenticationError),
    (status(403, {"message": "Total CPU quota exceeded"}), CapacityError),
    (status(409, {"message": "Conflict"}), ProviderUnavailableError),
    (status(429, {"message": "slow"}), ProviderUnavailableError),
    (status(500, {"message": "Internal server error"}), ProviderUnavailableError),
    (status(500, "<html>not JSON"), ProviderUnavailableError),
    (status(502, HTML), ProviderUnavailableError),
    (status(502, {"message": "sandbox is not reachable"}), ProviderUnavailableError),
    (status(503, "upstream connect error"), ProviderUnavailableError),
    (status(200, "not JSON"), ProviderUnavailableError),
    (status(200, {"neither": "fish"}), ProviderUnavailableError),
    ({"kind": "reset"}, ProviderUnavailableError),
    ({"kind": "reset_mid_body"}, ProviderUnavailableError),
    ({"kind": "drop"}, ProviderUnavailableError),
    ({"kind": "stall"}, ProviderUnavailableError),
    ({"kind": "stall_body"}, ProviderUnavailableError),
]
CALLS = {
    "create": "POST /api/sandbox",
    "describe": "GET /api/sandbox/",
    "terminal": "WS /toolbox",
    "list": "GET /api/sandbox",
    "renew": "/ttl/",
    "stop": "DELETE /api/sandbox/",
}
FEW = ("list", "renew", "stop")
"""The calls that get every fifth status only: they go the same way as the others."""
_AGAIN = ("reset", "drop")  # aiohttp sends what is safe again when a kept connection breaks
MAY_SUCCEED = {
    "create": ("409", "5", "200", "stall", *_AGAIN),  # found again
    "describe": _AGAIN,
    "terminal": ("stall_body", *_AGAIN),  # a terminal has no body
    "list": _AGAIN,
    "renew": ("200",),
    "stop": ("200", "409", "5", *_AGAIN),  # it is asked again
}
"""Where a fault need not be an error: the status or kind begins so."""


def name_of(fault: dict[str, Any]) -> str:
    """The fault in a test's name."""
    kind = "json" if isinstance(fault.get("body"), dict) else "text"
    return f"{fault['kind']}-{fault.get('status', '')}-{kind}"


def outcome(operation: Operation[T], seconds: float = TIMEOUT + 10) -> BaseException | None:
    """Its error or None; fails when it takes longer."""
    started = time.monotonic()
    error = operation.exception(30)
    took = time.monotonic() - started
    assert took < seconds, f"took {took:.1f} s"
    assert error is None or isinstance(error, SandboxError), error
    return error


CASES = [
    pytest.param(call, fault, expected, id=f"{call}-{name_of(fault)}")
    for call in CALLS
    for number, (fault, expected) in enumerate(FAULTS)
    if call not in FEW or fault["kind"] != "status" or number % 5 == 0
]


@pytest.mark.parametrize(("call", "fault", "expected"), CASES)
def test_a_call_that_fails(
    server: Server,
    session: Session,
    call: str,
    fault: dict[str, Any],
    expected: type[SandboxError],
) -> None:
    sandbox = session.sandbox()
    if call in FEW:
        sandbox.start().result(30)
    operations: dict[str, Callable[[], Operation[Any]]] = {
        "list": session.list,
        "renew": lambda: sandbox.renew(100),
        "stop": sandbox.stop,
    }
    server.fault(CALLS[call], times=1, **fault)
    operation = operations.get(call, lambda: sandbox.exec(["true"]))()
    error = outcome(operation, 2 * TIMEOUT + 10)  # the start and the command
    kind = str(fault.get("status", fault["kind"]))
    if error is None:
        assert kind.startswith(MAY_SUCCEED.get(call, ("nothing",))), "no error"
    elif expected is CapacityError and call == "terminal":
        assert isinstance(error, AuthenticationError)  # a refused WebSocket does not say why
    else:
        assert isinstance(error, expected), repr(error)
    server.clear()
    if error is not None and call not in FEW:
        assert server.alive == []
    elif call != "stop":
        assert sandbox.exec(["echo", "fine"]).result(30).stdout == "fine\n"


def test_retry_after_is_passed_on(server: Server, session: Session) -> None:
    headers = {"retry-after": "7"}
    server.fault("POST /api/sandbox", "status", times=1, status=429, headers=headers)
    error = outcome(session.sandbox().start())
    assert isinstance(error, ProviderUnavailableError)
    assert error.retry_after == 7.0


def test_a_create_without_an_answer_is_found_again(server: Server, session: Session) -> None:
    server.fault("POST /api/sandbox", "drop", times=1)
    sandbox = session.sandbox()
    assert outcome(sandbox.start()) is None
    assert server.alive == [sandbox.id]


def test_a_sandbox_deleted_under_a_command(server: Server, session: Session) -> None:
    process = session.sandbox().exec(["sh", "-c", "echo up; exec sleep 1000"])
    assert next(iter(process.stdout.lines())) == "up"
    server.kill_sandboxes()
    error = outcome(process)
    assert isinstance(error, SandboxTerminatedError | SandboxNotFoundError)


def test_a_sandbox_that_stops_without_a_message(server: Server, session: Session) -> None:
    sandbox = session.sandbox()
    process = sandbox.exec(["sh", "-c", "echo up; exec sleep 1000"])
    assert next(iter(process.stdout.lines())) == "up"
    server.stop_silently()
    for each in (process, sandbox.exec(["true"])):
        error = outcome(each, 30)
        assert isinstance(error, SandboxTerminatedError), repr(error)
        assert error.by_command
    sandbox.stop().result(30)


def test_a_stop_without_a_message_is_seen_by_the_next_command(
    server: Server, session: Session
) -> None:
    sandbox = session.sandbox().start().result(30)
    server.stop_silently()
    error = outcome(sandbox.exec(["true"]), 30)
    assert isinstance(error, SandboxTerminatedError), repr(error)
    sandbox.stop().result(30)


def test_deleting_twice_succeeds(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.kill_sandboxes()
    assert outcome(sandbox.stop()) is None


@pytest.mark.parametrize("kind", ["reset", "stall"])
def test_a_create_that_never_arrived_leaves_nothing(
    server: Server, session: Session, kind: str
) -> None:
    server.fault("POST /api/sandbox", kind)
    error = outcome(session.sandbox().start(), 2 * TIMEOUT + 10)
    assert isinstance(error, ProviderUnavailableError)
    assert server.alive == []


@pytest.mark.parametrize("kind", ["reset", "stall", "status"])
def test_a_sandbox_in_which_nothing_can_run_is_not_kept(
    server: Server, session: Session, kind: str
) -> None:
    server.fault("WS /toolbox", kind, status=500)
    error = outcome(session.sandbox().start(), 2 * TIMEOUT + 10)
    assert isinstance(error, ProviderUnavailableError)
    assert server.alive == []


def test_a_sandbox_that_ends_before_a_command(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.kill_sandboxes()
    error = outcome(sandbox.exec(["true"]))
    assert isinstance(error, SandboxTerminatedError | SandboxNotFoundError)


def test_listings_go_through_all_pages(server: Server, session: Session) -> None:
    sandboxes = [session.sandbox(tags={"page": "1"}) for _ in range(7)]
    for start in [sandbox.start() for sandbox in sandboxes]:
        start.result(60)
    server.clear()
    found = session.list({"page": "1"}).result(30)
    assert {info.id for info in found} == {sandbox.id for sandbox in sandboxes}
    assert server.requests.count("GET /api/sandbox") == 3  # the emulator gives three a page


def test_a_failed_page_raises_instead_of_a_short_list(server: Server, session: Session) -> None:
    for start in [session.sandbox().start() for _ in range(4)]:
        start.result(60)
    server.fault("GET /api/sandbox", "reset", skip=1)
    assert isinstance(outcome(session.list()), ProviderUnavailableError)


def test_an_unreachable_endpoint_fails_in_time(server: Server) -> None:
    with mock.patch.dict(os.environ, {"DAYTONA_API_URL": "http://127.0.0.1:9/api"}):
        provider = DaytonaProvider(timeout=TIMEOUT)
        with Session(provider) as session:
            error = outcome(session.sandbox().start())
        Operation(provider.aclose()).result(30)
    assert isinstance(error, ProviderUnavailableError)


def test_a_start_that_is_cancelled_leaves_nothing(server: Server, session: Session) -> None:
    for delay in (0.0, 0.01, 0.1, 0.5):
        sandbox = session.sandbox()
        sandbox.start()
        time.sleep(delay)  # the moment of the stop is what varies
        sandbox.stop().result(30)
        assert server.alive == []


def test_a_command_killed_with_its_sandbox_says_so(server: Server, session: Session) -> None:
    process = session.sandbox().exec(["sh", "-c", "echo up; exec sleep 1000"], timeout=3)
    assert next(iter(process.stdout.lines())) == "up"
    server.kill_sandboxes()
    assert isinstance(outcome(process), SandboxTerminatedError)


def test_a_start_whose_connection_breaks_at_any_moment(server: Server, session: Session) -> None:
    for number in range(12):
        sandbox = session.sandbox()
        start = sandbox.start()
        time.sleep(0.06 + 0.02 * number)  # the moment is what varies
        server.break_connections()
        error = outcome(start, 20)
        assert error is None or isinstance(error, ProviderUnavailableError), repr(error)
        sandbox.stop().result(30)
        assert server.alive == []


def test_a_profile_of_the_image_that_ends_shells_is_named(server: Server, session: Session) -> None:
    server.login_with("exit 3")
    error = outcome(session.sandbox().start())
    assert isinstance(error, SandboxStartError)
    assert not error.retryable
    assert "/etc/profile" in str(error)
    assert "status 3" in str(error)
    assert server.alive == []


def test_a_failed_start_on_a_terminal_has_no_status(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    for argv, cwd in ((["/no/such"], None), (["true"], "/no/such")):
        error = outcome(sandbox.exec(argv, cwd=cwd, pty=True))
        assert isinstance(error, CommandStartError)
        assert error.errno == 2


def test_arguments_that_are_too_long_are_not_started(server: Server, session: Session) -> None:
    env = {f"V{number}": "x" * 100_000 for number in range(15)}
    error = outcome(session.sandbox().exec(["true", *["x" * 100_000] * 10], env=env), 30)
    assert isinstance(error, CommandStartError)
    assert error.errno == 7
