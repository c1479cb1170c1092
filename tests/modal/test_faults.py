"""Whatever goes wrong on the way: a typed error or success in time, and no sandbox left."""

import time
from typing import Any

import pytest

from sandboxkit import Operation, Sandbox, SandboxState, Session, errors
from sandboxkit.providers.modal import ModalProvider
from tests.emulators._server import Server
from tests.faults import FaultProxy
from tests.hosted.faults import outcome
from tests.modal.server import Modal

UNAVAILABLE, BAD_GATEWAY = Modal().statuses["status"], Modal().statuses["http"]
BROKEN: list[tuple[str, str, dict[str, str]]] = [
    (call, kind, rule)
    for call in ("TaskExecStdinWrite", "TaskExecStdioRead")
    for kind, rule in (
        ("status", {"status": "RESOURCE_EXHAUSTED", "message": "rate limit"}),
        ("status", {"status": "NOT_FOUND", "message": "Exec 'x' not found"}),
        ("reset", {}),
    )
]


def raised(operation: Operation[Any]) -> errors.SandboxError:
    """The error of an operation, which must come in time and be one of ours."""
    error = outcome(operation, Modal.timeout + 10)
    assert error is not None
    return error


@pytest.mark.parametrize(("call", "kind", "rule"), BROKEN)
def test_an_agent_whose_stream_breaks_as_it_starts_is_left_with_no_sandbox(
    server: Server, session: Session, call: str, kind: str, rule: dict[str, object]
) -> None:
    server.fault(call, kind, **rule)
    error = session.sandbox().start().exception(90)
    assert isinstance(error, errors.ProviderUnavailableError), repr(error)
    assert server.alive == []


@pytest.mark.parametrize(
    ("call", "kind", "rule"),
    [
        *BROKEN,
        ("TaskExecStart", "status", UNAVAILABLE),
        ("TaskExecStart", "http", BAD_GATEWAY),
        ("TaskExecStart", "reset", {}),
        ("TaskExecStart", "stall", {}),
    ],
)
def test_a_command_whose_connection_is_not_made_did_not_run(
    server: Server, sandbox: Sandbox, other: Session, call: str, kind: str, rule: dict[str, object]
) -> None:
    found = other.from_id(str(sandbox.id)).result(30)
    server.fault(call, kind, **rule)
    error = found.exec(["touch", "/workspace/ran"]).exception(90)
    assert isinstance(error, errors.ProviderUnavailableError), repr(error)
    assert error.retryable
    server.clear()
    assert found.exec(["ls"]).result(30).stdout == ""


@pytest.mark.parametrize("call", ["SandboxCreateV2", "TaskExecStart", "SandboxListV2"])
def test_a_fault_that_passes_is_not_seen(server: Server, session: Session, call: str) -> None:
    server.fault(call, "status", status="UNAVAILABLE", times=2)
    sandbox = session.sandbox()
    running = sandbox.exec(["echo", "fine"])
    assert outcome(running, Modal.timeout + 10) is None
    assert running.result(30).stdout == "fine\n"
    assert len(session.list().result(30)) == 1
    assert len(server.alive) == 1


def test_a_lost_start_is_removed_over_another_connection_than_it_was_made_over(
    server: Server, provider: ModalProvider, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxkit.providers.modal._account._MOST_SILENT", 0)
    server.fault("SandboxCreateV2", "drop")
    server.fault("SandboxGetFromNameV2", "status", status="UNAVAILABLE")
    raised(session.sandbox().start())
    assert len(server.alive) == 1
    server.fault("SandboxListV2", "silent", times=1)
    raised(session.list())  # another connection replaces this one, which is closed
    server.clear()
    Operation(provider.aclose()).result(30)
    assert server.alive == []


def test_throttling_that_says_when_is_waited_for(server: Server, session: Session) -> None:
    rule = {"status": "RESOURCE_EXHAUSTED", "message": "slow down", "retry_after": 0.5}
    server.fault("SandboxCreateV2", "status", times=2, **rule)
    started = time.monotonic()
    session.sandbox().start().result(30)
    assert 1.0 <= time.monotonic() - started < Modal.timeout + 10


@pytest.mark.parametrize("seconds", [-3600.0, -1190.0, 3600.0])
def test_a_clock_that_is_wrong(server: Server, session: Session, seconds: float) -> None:
    server.set(clock_skew=seconds)
    sandbox = session.sandbox()
    assert sandbox.exec(["echo", "fine"]).result(30).stdout == "fine\n"
    assert len(session.list().result(30)) == 1


def test_a_task_token_that_was_withdrawn_is_renewed(server: Server, session: Session) -> None:
    server.set(clock_skew=-3600.0)  # its client then sees it as expired
    sandbox: Sandbox = session.sandbox().start().result(30)
    assert sandbox.exec(["echo", "1"]).result(30).stdout == "1\n"
    server.ask("revoke")
    assert sandbox.exec(["echo", "2"]).result(30).stdout == "2\n"
    server.break_connections()
    assert sandbox.exec(["echo", "3"]).result(30).stdout == "3\n"


def test_a_connection_that_falls_silent_is_replaced(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy(server.url) as proxy:
        monkeypatch.setenv("MODAL_SERVER_URL", proxy.url)
        provider = ModalProvider(timeout=Modal.timeout, build_timeout=Modal.timeout)
        with Session(provider) as session:
            sandbox = session.sandbox().start().result(30)
            proxy.abandon()
            with pytest.raises(errors.ProviderUnavailableError):
                sandbox.status().result(30)
            assert session.run(["echo", "there"]).result(30).stdout == "there\n"
            assert sandbox.status().result(30).state is SandboxState.RUNNING
        Operation(provider.aclose()).result(30)
    assert server.alive == []
