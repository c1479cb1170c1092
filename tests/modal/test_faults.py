"""Whatever goes wrong on the way: a typed error or success in time, and no sandbox left."""

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from sandboxkit import (
    AuthenticationError,
    Operation,
    ProviderUnavailableError,
    Sandbox,
    SandboxError,
    SandboxState,
    Session,
)
from sandboxkit.providers.modal import ModalProvider
from tests.faults import FaultProxy
from tests.modal.server import Modal, ModalServer

T = TypeVar("T")

FEW: list[tuple[str, dict[str, object]]] = [
    ("status", {"status": "UNAVAILABLE", "message": "no healthy upstream"}),
    ("http", {"status": 502, "message": "<html>Bad Gateway</html>"}),
    ("reset", {}),
    ("stall", {}),
]


def each_with(calls: dict[str, list[tuple[str, dict[str, object]]]]) -> pytest.MarkDecorator:
    """Every call with its faults."""
    cases = [(call, kind, rule) for call, faults in calls.items() for kind, rule in faults]
    names = [f"{call}-{kind}-{rule.get('status', '')}" for call, kind, rule in cases]
    return pytest.mark.parametrize(("call", "kind", "rule"), cases, ids=names)


def within(seconds: float, action: Callable[[], T]) -> T:
    """Do it; fail when it takes longer, whatever the outcome."""
    started = time.monotonic()
    try:
        return action()
    finally:
        took = time.monotonic() - started
        assert took < seconds, f"took {took:.1f} s"


def raised(operation: Operation[T]) -> SandboxError:
    """The error of an operation, which must come in time and be one of ours."""
    error = within(Modal.timeout + 10, lambda: operation.exception(30))
    assert isinstance(error, SandboxError), error
    return error


BROKEN: list[tuple[str, dict[str, object]]] = [
    ("status", {"status": "RESOURCE_EXHAUSTED", "message": "rate limit"}),
    ("status", {"status": "NOT_FOUND", "message": "Exec 'x' not found"}),
    ("reset", {}),
]


@each_with({"TaskExecStdinWrite": BROKEN, "TaskExecStdioRead": BROKEN})
def test_an_agent_whose_stream_breaks_as_it_starts_is_left_with_no_sandbox(
    server: ModalServer, session: Session, call: str, kind: str, rule: dict[str, object]
) -> None:
    server.fault(call, kind, **rule)
    error = session.sandbox().start().exception(90)
    assert isinstance(error, ProviderUnavailableError), repr(error)
    assert server.running() == []


@each_with({"TaskExecStdinWrite": BROKEN, "TaskExecStdioRead": BROKEN})
def test_a_command_whose_connection_breaks_as_it_is_made_did_not_run(
    server: ModalServer, session: Session, call: str, kind: str, rule: dict[str, object]
) -> None:
    sandbox = session.sandbox().start().result(30)
    with Session(ModalProvider(timeout=Modal.timeout)) as other:
        found = other.from_id(str(sandbox.id)).result(30)
        server.fault(call, kind, **rule)
        error = found.exec(["touch", "/workspace/ran"]).exception(90)
        assert isinstance(error, ProviderUnavailableError), repr(error)
        server.ask("calm")
        assert found.exec(["ls"]).result(30).stdout == ""


@each_with({"TaskExecStart": FEW})
def test_a_command_for_which_no_way_is_found_did_not_run(
    server: ModalServer, session: Session, call: str, kind: str, rule: dict[str, object]
) -> None:
    sandbox = session.sandbox().start().result(30)
    with Session(ModalProvider(timeout=Modal.timeout)) as other:
        found = other.from_id(str(sandbox.id)).result(30)
        server.fault(call, kind, **rule)
        error = raised(found.exec(["touch", "/workspace/ran"]))
        assert isinstance(error, ProviderUnavailableError)
        assert error.retryable
        server.ask("calm")
        assert found.exec(["ls"]).result(30).stdout == ""


@pytest.mark.parametrize("call", ["SandboxCreateV2", "TaskExecStart", "SandboxListV2"])
def test_a_fault_that_passes_is_not_seen(server: ModalServer, session: Session, call: str) -> None:
    server.fault(call, "status", status="UNAVAILABLE", times=2)
    sandbox = session.sandbox()
    result = within(Modal.timeout + 10, lambda: sandbox.exec(["echo", "fine"]).result(30))
    assert result.stdout == "fine\n"
    assert len(session.list().result(30)) == 1
    assert len(server.running()) == 1


def test_a_lost_start_is_removed_over_another_connection_than_it_was_made_over(
    server: ModalServer,
    provider: ModalProvider,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sandboxkit.providers.modal._account._MOST_SILENT", 0)
    server.fault("SandboxCreateV2", "drop")
    server.fault("SandboxGetFromNameV2", "status", status="UNAVAILABLE")
    raised(session.sandbox().start())
    assert len(server.running()) == 1
    server.fault("SandboxListV2", "silent", times=1)
    raised(session.list())  # another connection replaces this one, which is closed
    server.ask("calm")
    Operation(provider.aclose()).result(30)
    assert server.running() == []


@pytest.mark.parametrize("call", ["AppGetOrCreate", "AuthTokenGet"])
def test_credentials_that_are_refused(server: ModalServer, session: Session, call: str) -> None:
    server.fault(call, "status", status="UNAUTHENTICATED", message="Token is disabled")
    error = raised(session.sandbox().start())
    assert isinstance(error, AuthenticationError)
    assert "MODAL_TOKEN_ID" in str(error)


def test_throttling_that_says_when_is_waited_for(server: ModalServer, session: Session) -> None:
    rule = {"status": "RESOURCE_EXHAUSTED", "message": "slow down", "retry_after": 0.5}
    server.fault("SandboxCreateV2", "status", times=2, **rule)
    started = time.monotonic()
    session.sandbox().start().result(30)
    assert 1.0 <= time.monotonic() - started < Modal.timeout + 10


def test_throttling_that_outlasts_the_deadline(server: ModalServer, session: Session) -> None:
    rule = {"status": "RESOURCE_EXHAUSTED", "message": "slow down", "retry_after": 60}
    server.fault("SandboxCreateV2", "status", **rule)
    assert isinstance(raised(session.sandbox().start()), ProviderUnavailableError)


@pytest.mark.parametrize("seconds", [-3600.0, -1190.0, 3600.0])
def test_a_clock_that_is_wrong(server: ModalServer, session: Session, seconds: float) -> None:
    server.ask("skew", seconds=seconds)
    sandbox = session.sandbox()
    assert sandbox.exec(["echo", "fine"]).result(30).stdout == "fine\n"
    assert len(session.list().result(30)) == 1


def test_a_task_token_that_was_withdrawn_is_renewed(server: ModalServer, session: Session) -> None:
    server.ask("skew", seconds=-3600.0)  # its client then sees it as expired
    sandbox: Sandbox = session.sandbox().start().result(30)
    assert sandbox.exec(["echo", "1"]).result(30).stdout == "1\n"
    server.ask("revoke")
    assert sandbox.exec(["echo", "2"]).result(30).stdout == "2\n"
    server.ask("cut")
    assert sandbox.exec(["echo", "3"]).result(30).stdout == "3\n"


def test_a_connection_that_falls_silent_is_replaced(
    server: ModalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy(server.url) as proxy:
        monkeypatch.setenv("MODAL_SERVER_URL", proxy.url)
        provider = ModalProvider(timeout=Modal.timeout, build_timeout=Modal.timeout)
        with Session(provider) as session:
            sandbox = session.sandbox().start().result(30)
            proxy.abandon()
            with pytest.raises(ProviderUnavailableError):
                sandbox.status().result(30)
            assert session.run(["echo", "there"]).result(30).stdout == "there\n"
            assert sandbox.status().result(30).state is SandboxState.RUNNING
        Operation(provider.aclose()).result(30)
    assert server.running() == []
