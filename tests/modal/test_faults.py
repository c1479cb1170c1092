"""Whatever goes wrong on the way: a typed error or success in time, and no sandbox left."""

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from sandboxkit import (
    AuthenticationError,
    CapacityError,
    Operation,
    ProviderUnavailableError,
    Sandbox,
    SandboxError,
    SandboxNotFoundError,
    SandboxState,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.providers.modal import ModalProvider
from tests.emulators.modal.client import ModalEmulator
from tests.faults import FaultProxy
from tests.modal.conftest import TIMEOUT

T = TypeVar("T")

UNREACHABLE: list[tuple[str, dict[str, object]]] = [
    ("status", {"status": "UNAVAILABLE", "message": "no healthy upstream"}),
    ("status", {"status": "INTERNAL", "message": '{"error": "database"}'}),
    ("status", {"status": "UNKNOWN", "message": "upstream says <html>"}),
    ("status", {"status": "DEADLINE_EXCEEDED", "message": "too slow"}),
    ("http", {"status": 502, "message": "<html>Bad Gateway</html>"}),
    ("http", {"status": 503, "message": "upstream connect error"}),
    ("http", {"status": 500, "message": "not JSON, not gRPC"}),
    ("reset", {}),
    ("stall", {}),
    ("silent", {}),
    ("garbage", {}),
]
FEW = [UNREACHABLE[0], ("http", UNREACHABLE[4][1]), ("reset", {}), ("stall", {})]


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
    error = within(TIMEOUT + 10, lambda: operation.exception(30))
    assert isinstance(error, SandboxError), error
    return error


@each_with(
    {
        "AppGetOrCreate": FEW,
        "ImageGetOrCreate": FEW,
        "AuthTokenGet": FEW,
        "SandboxCreateV2": UNREACHABLE,
    }
)
def test_a_start_that_fails_on_the_way(
    emulator: ModalEmulator, session: Session, call: str, kind: str, rule: dict[str, object]
) -> None:
    emulator.fault(call, kind, **rule)
    sandbox = session.sandbox()
    error = within(TIMEOUT + 10, lambda: sandbox.start().exception(30))
    if error is None:  # the work was done although the answer said nothing, and it was found
        assert emulator.running() == [sandbox.id]
    else:
        assert isinstance(error, ProviderUnavailableError)
        assert error.retryable
        assert emulator.running() == []


@each_with({"SandboxListV2": FEW, "SandboxTagsGetV2": FEW})
def test_a_listing_that_fails_on_the_way(
    emulator: ModalEmulator, session: Session, call: str, kind: str, rule: dict[str, object]
) -> None:
    session.sandbox().start().result(30)
    emulator.fault(call, kind, **rule)
    assert isinstance(raised(session.list()), ProviderUnavailableError)


@each_with({"TaskExecStart": UNREACHABLE})
def test_an_agent_that_cannot_be_started_is_left_with_no_sandbox(
    emulator: ModalEmulator, session: Session, call: str, kind: str, rule: dict[str, object]
) -> None:
    emulator.fault(call, kind, **rule)
    error = within(2 * TIMEOUT + 10, lambda: session.sandbox().start().exception(30))
    assert isinstance(error, ProviderUnavailableError), repr(error)
    assert error.retryable
    assert emulator.running() == []


BROKEN: list[tuple[str, dict[str, object]]] = [
    ("status", {"status": "RESOURCE_EXHAUSTED", "message": "rate limit"}),
    ("status", {"status": "NOT_FOUND", "message": "Exec 'x' not found"}),
    ("reset", {}),
]


@each_with({"TaskExecStdinWrite": BROKEN, "TaskExecStdioRead": BROKEN})
def test_an_agent_whose_stream_breaks_as_it_starts_is_left_with_no_sandbox(
    emulator: ModalEmulator, session: Session, call: str, kind: str, rule: dict[str, object]
) -> None:
    emulator.fault(call, kind, **rule)
    error = session.sandbox().start().exception(90)
    assert isinstance(error, ProviderUnavailableError), repr(error)
    assert emulator.running() == []


@each_with({"TaskExecStdinWrite": BROKEN, "TaskExecStdioRead": BROKEN})
def test_a_command_whose_connection_breaks_as_it_is_made_did_not_run(
    emulator: ModalEmulator, session: Session, call: str, kind: str, rule: dict[str, object]
) -> None:
    sandbox = session.sandbox().start().result(30)
    with Session(ModalProvider(timeout=TIMEOUT)) as other:
        found = other.from_id(str(sandbox.id)).result(30)
        emulator.fault(call, kind, **rule)
        error = found.exec(["touch", "/workspace/ran"]).exception(90)
        assert isinstance(error, ProviderUnavailableError), repr(error)
        emulator.ask("calm")
        assert found.exec(["ls"]).result(30).stdout == ""


@each_with({"TaskExecStart": FEW})
def test_a_command_for_which_no_way_is_found_did_not_run(
    emulator: ModalEmulator, session: Session, call: str, kind: str, rule: dict[str, object]
) -> None:
    sandbox = session.sandbox().start().result(30)
    with Session(ModalProvider(timeout=TIMEOUT)) as other:
        found = other.from_id(str(sandbox.id)).result(30)
        emulator.fault(call, kind, **rule)
        error = raised(found.exec(["touch", "/workspace/ran"]))
        assert isinstance(error, ProviderUnavailableError)
        assert error.retryable
        emulator.ask("calm")
        assert found.exec(["ls"]).result(30).stdout == ""


@pytest.mark.parametrize("call", ["SandboxCreateV2", "TaskExecStart", "SandboxListV2"])
def test_a_fault_that_passes_is_not_seen(
    emulator: ModalEmulator, session: Session, call: str
) -> None:
    emulator.fault(call, "status", status="UNAVAILABLE", times=2)
    sandbox = session.sandbox()
    result = within(TIMEOUT + 10, lambda: sandbox.exec(["echo", "fine"]).result(30))
    assert result.stdout == "fine\n"
    assert len(session.list().result(30)) == 1
    assert len(emulator.running()) == 1


def test_a_start_whose_answer_is_lost_is_found_by_its_name(
    emulator: ModalEmulator, session: Session
) -> None:
    emulator.fault("SandboxCreateV2", "drop", times=1)
    sandbox = within(TIMEOUT + 10, lambda: session.sandbox().start().result(30))
    assert emulator.running() == [sandbox.id]
    assert sandbox.exec(["echo", "fine"]).result(30).stdout == "fine\n"


def test_a_start_whose_every_answer_is_lost_is_found_by_its_name(
    emulator: ModalEmulator, session: Session
) -> None:
    emulator.fault("SandboxCreateV2", "drop")
    sandbox = within(TIMEOUT + 10, lambda: session.sandbox().start().result(30))
    assert emulator.running() == [sandbox.id]


def test_a_start_without_an_answer_is_found_by_its_name(
    emulator: ModalEmulator, session: Session
) -> None:
    emulator.fault("SandboxCreateV2", "silent")
    sandbox = within(TIMEOUT + 10, lambda: session.sandbox().start().result(30))
    assert emulator.running() == [sandbox.id]


def test_a_lost_start_is_removed_over_another_connection_than_it_was_made_over(
    emulator: ModalEmulator,
    provider: ModalProvider,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sandboxkit.providers.modal._account._MOST_SILENT", 0)
    emulator.fault("SandboxCreateV2", "drop")
    emulator.fault("SandboxGetFromNameV2", "status", status="UNAVAILABLE")
    raised(session.sandbox().start())
    assert len(emulator.running()) == 1
    emulator.fault("SandboxListV2", "silent", times=1)
    raised(session.list())  # another connection replaces this one, which is closed
    emulator.ask("calm")
    Operation(provider.aclose()).result(30)
    assert emulator.running() == []


@pytest.mark.parametrize("call", ["AppGetOrCreate", "SandboxCreateV2", "AuthTokenGet"])
def test_credentials_that_are_refused(emulator: ModalEmulator, session: Session, call: str) -> None:
    emulator.fault(call, "status", status="UNAUTHENTICATED", message="Token is disabled")
    error = raised(session.sandbox().start())
    assert isinstance(error, AuthenticationError)
    assert "MODAL_TOKEN_ID" in str(error)


def test_a_permission_that_is_missing(emulator: ModalEmulator, session: Session) -> None:
    emulator.fault("SandboxCreateV2", "status", status="PERMISSION_DENIED", message="read only")
    assert isinstance(raised(session.sandbox().start()), AuthenticationError)


def test_a_wrong_token(
    emulator: ModalEmulator, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-another")
    assert isinstance(raised(session.sandbox().start()), AuthenticationError)


def test_a_quota_that_is_reached(emulator: ModalEmulator, session: Session) -> None:
    emulator.fault("SandboxCreateV2", "status", status="RESOURCE_EXHAUSTED", message="limit of 100")
    error = raised(session.sandbox().start())
    assert isinstance(error, CapacityError)
    assert error.retryable


def test_throttling_that_says_when_is_waited_for(emulator: ModalEmulator, session: Session) -> None:
    rule = {"status": "RESOURCE_EXHAUSTED", "message": "slow down", "retry_after": 0.5}
    emulator.fault("SandboxCreateV2", "status", times=2, **rule)
    started = time.monotonic()
    session.sandbox().start().result(30)
    assert 1.0 <= time.monotonic() - started < TIMEOUT + 10


def test_throttling_that_outlasts_the_deadline(emulator: ModalEmulator, session: Session) -> None:
    rule = {"status": "RESOURCE_EXHAUSTED", "message": "slow down", "retry_after": 60}
    emulator.fault("SandboxCreateV2", "status", **rule)
    assert isinstance(raised(session.sandbox().start()), ProviderUnavailableError)


def test_throttling_is_passed_on_with_its_time_where_the_sdk_may_not_wait(
    emulator: ModalEmulator, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.sandbox().start().result(30)
    monkeypatch.setenv("MODAL_MAX_THROTTLE_WAIT", "1")
    rule = {"status": "RESOURCE_EXHAUSTED", "message": "slow down", "retry_after": 7}
    emulator.fault("SandboxListV2", "status", **rule)
    error = raised(session.list())
    assert isinstance(error, ProviderUnavailableError)
    assert error.retry_after == 7


def test_a_sandbox_that_vanishes_is_not_found(emulator: ModalEmulator, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    emulator.ask("end", sandbox_id=sandbox.id)
    error = raised(sandbox.exec(["true"]))
    assert isinstance(error, SandboxNotFoundError | SandboxTerminatedError)
    with pytest.raises(SandboxNotFoundError):
        session.from_id(str(sandbox.id)).result(30)
    sandbox.stop().result(30)


@pytest.mark.parametrize("seconds", [-3600.0, -1190.0, 3600.0])
def test_a_clock_that_is_wrong(emulator: ModalEmulator, session: Session, seconds: float) -> None:
    emulator.ask("skew", seconds=seconds)
    sandbox = session.sandbox()
    assert sandbox.exec(["echo", "fine"]).result(30).stdout == "fine\n"
    assert len(session.list().result(30)) == 1


def test_a_task_token_that_was_withdrawn_is_renewed(
    emulator: ModalEmulator, session: Session
) -> None:
    emulator.ask("skew", seconds=-3600.0)  # its client then sees it as expired
    sandbox: Sandbox = session.sandbox().start().result(30)
    assert sandbox.exec(["echo", "1"]).result(30).stdout == "1\n"
    emulator.ask("revoke")
    assert sandbox.exec(["echo", "2"]).result(30).stdout == "2\n"
    emulator.ask("cut")
    assert sandbox.exec(["echo", "3"]).result(30).stdout == "3\n"


def test_an_endpoint_that_cannot_be_reached(
    emulator: ModalEmulator, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODAL_SERVER_URL", "http://127.0.0.1:9")
    error = raised(session.sandbox().start())
    assert isinstance(error, ProviderUnavailableError)
    assert "http://127.0.0.1:9" in str(error)


def test_pages_of_a_listing_are_all_read(emulator: ModalEmulator, session: Session) -> None:
    sandboxes = [session.sandbox() for _ in range(7)]
    ids = {sandbox.start().result(30).id for sandbox in sandboxes}
    emulator.ask("calls")
    assert {info.id for info in session.list().result(30)} == ids
    assert emulator.ask("calls")["SandboxListV2"] == 4


def test_a_connection_that_falls_silent_is_replaced(
    emulator: ModalEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy(emulator.url) as proxy:
        monkeypatch.setenv("MODAL_SERVER_URL", proxy.url)
        provider = ModalProvider(timeout=TIMEOUT, build_timeout=TIMEOUT)
        with Session(provider) as session:
            sandbox = session.sandbox().start().result(30)
            proxy.abandon()
            with pytest.raises(ProviderUnavailableError):
                sandbox.status().result(30)
            assert session.run(["echo", "there"]).result(30).stdout == "there\n"
            assert sandbox.status().result(30).state is SandboxState.RUNNING
        Operation(provider.aclose()).result(30)
    assert emulator.running() == []
