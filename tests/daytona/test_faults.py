"""Whatever goes wrong on the way: a typed error or success in time, and no sandbox left."""

import time
from typing import Any, TypeVar

import pytest

from sandboxkit import (
    AuthenticationError,
    CapacityError,
    Operation,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxTerminatedError,
    Session,
)
from tests.daytona.conftest import TIMEOUT
from tests.emulators._server import Server

T = TypeVar("T")

FAULTS: list[dict[str, Any]] = [
    {"kind": "status", "status": 401, "body": {"message": "Invalid credentials"}},
    {"kind": "status", "status": 403, "body": {"message": "Forbidden resource"}},
    {"kind": "status", "status": 404, "body": {"message": "Cannot find"}},
    {"kind": "status", "status": 409, "body": {"message": "Conflict"}},
    {"kind": "status", "status": 429, "body": {"message": "slow"}},
    {"kind": "status", "status": 429, "headers": {"retry-after": "7"}},
    {"kind": "status", "status": 500, "body": {"message": "Internal server error"}},
    {"kind": "status", "status": 500, "body": "<html>not JSON"},
    {"kind": "status", "status": 502, "body": "<html>Bad Gateway</html>"},
    {"kind": "status", "status": 502, "body": {"message": "sandbox is not reachable"}},
    {"kind": "status", "status": 503, "body": "upstream connect error"},
    {"kind": "status", "status": 200, "body": "not JSON"},
    {"kind": "status", "status": 200, "body": {"neither": "fish"}},
    {"kind": "reset"},
    {"kind": "reset_mid_body"},
    {"kind": "drop"},
    {"kind": "stall"},
    {"kind": "stall_body"},
]
CALLS = {
    "create": "POST /api/sandbox",
    "describe": "GET /api/sandbox/",
    "toolbox": "POST /toolbox",
    "terminal": "WS /toolbox",
}


def name_of(fault: dict[str, Any]) -> str:
    """The fault in a test's name."""
    kind = "json" if isinstance(fault.get("body"), dict) else "text"
    return f"{fault['kind']}-{fault.get('status', '')}-{kind}"


def outcome(operation: Operation[T], seconds: float = TIMEOUT + 2) -> BaseException | None:
    """Its error or None; fails when it takes longer."""
    started = time.monotonic()
    error = operation.exception(30)
    took = time.monotonic() - started
    assert took < seconds, f"took {took:.1f} s"
    assert error is None or isinstance(error, SandboxError), error
    return error


@pytest.mark.parametrize("fault", FAULTS, ids=name_of)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_that_fails(
    server: Server, session: Session, call: str, fault: dict[str, Any]
) -> None:
    sandbox = session.sandbox()
    if call == CALLS["terminal"]:
        sandbox.start().result(30)
    server.fault(call, times=1, **fault)
    operation: Operation[Any] = sandbox.exec(["true"])
    outcome(operation, 2 * TIMEOUT + 2)  # the start and the command


def test_what_each_status_is(server: Server, session: Session) -> None:
    expected: list[tuple[int, str, type[SandboxError]]] = [
        (401, "Invalid credentials", AuthenticationError),
        (403, "Forbidden resource", AuthenticationError),
        (403, "Total CPU quota exceeded", CapacityError),
        (429, "slow", ProviderUnavailableError),
        (503, "busy", ProviderUnavailableError),
    ]
    for status, message, kind in expected:
        server.fault("POST /api/sandbox", "status", times=1, status=status, body=message)
        error = outcome(session.sandbox().start())
        assert type(error) is kind


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


def test_deleting_twice_is_no_error(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.kill_sandboxes()
    assert outcome(sandbox.stop()) is None
