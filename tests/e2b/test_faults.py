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
    Operation,
    ProviderUnavailableError,
    Sandbox,
    SandboxError,
    SandboxNotFoundError,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.providers.e2b import E2BProvider
from tests.e2b.conftest import TIMEOUT
from tests.e2b.server import E2BServer
from tests.emulators._server import Server

T = TypeVar("T")

CREATE, LIST = "POST /v2/sandboxes", "GET /v2/sandboxes"
DELETE, START = "DELETE /sandboxes/", "/process.Process/Start"

BROKEN = ("reset", "drop", "stall", "stall_body", "reset_mid_body")
broken = pytest.mark.parametrize("kind", BROKEN)


def raised(operation: Operation[Any], calls: int = 1) -> SandboxError:
    """The error of an operation, which comes within its calls' deadline and is one of ours."""
    error = timed(lambda: operation.exception(60), calls * TIMEOUT + 10)
    assert isinstance(error, SandboxError), repr(error)
    assert error.provider == "e2b"
    return error


def timed(action: Callable[[], T], seconds: float) -> T:
    """Do it; fail when it takes longer."""
    started = time.monotonic()
    result = action()
    assert time.monotonic() - started < seconds
    return result


def test_retry_after_as_a_date_counts_from_the_servers_clock(
    server: Server, session: Session
) -> None:
    skewed = {
        "Date": "Sat, 01 Jan 2000 00:00:00 GMT",
        "Retry-After": "Sat, 01 Jan 2000 00:00:09 GMT",
    }
    server.fault(LIST, "status", status=429, headers=skewed)
    error = raised(session.list())
    assert isinstance(error, ProviderUnavailableError)
    # Uvicorn sends a date of its own, too: ours or its, never a negative time.
    assert error.retry_after in (0.0, 9.0)


def test_a_full_account_is_a_capacity_error(server: E2BServer, session: Session) -> None:
    server.limit(1)
    session.sandbox().start().result(30)
    error = raised(session.sandbox().start())
    assert isinstance(error, CapacityError)
    assert "(1)" in str(error)


@pytest.mark.parametrize("kind", ["drop", "reset_mid_body", "stall_body"])
def test_a_lost_answer_of_a_create_is_found_again(
    server: Server, session: Session, kind: str
) -> None:
    server.fault(CREATE, kind, times=1)
    sandbox = session.sandbox()
    timed(lambda: sandbox.start().result(60), 2 * TIMEOUT + 10)
    assert server.alive == [sandbox.id]
    assert sandbox.exec(["echo", "adopted"]).result(30).stdout == "adopted\n"


@pytest.mark.parametrize("kind", ["reset", "stall"])
def test_a_create_that_never_arrived_leaves_nothing(
    server: Server, session: Session, kind: str
) -> None:
    server.fault(CREATE, kind)
    assert isinstance(raised(session.sandbox().start(), 2), ProviderUnavailableError)
    assert server.alive == []


@pytest.mark.parametrize("kind", ["reset", "stall", "status"])
def test_a_sandbox_in_which_nothing_can_run_is_not_kept(
    server: Server, session: Session, kind: str
) -> None:
    server.fault(START, kind, status=500)
    assert isinstance(raised(session.sandbox().start(), 3), ProviderUnavailableError)
    assert server.alive == []


@broken
def test_a_listing_ends_in_time(server: Server, session: Session, kind: str) -> None:
    server.fault(LIST, kind)
    assert isinstance(raised(session.list()), ProviderUnavailableError)


@pytest.mark.parametrize("kind", ["reset", "drop", "stall"])
def test_a_stop_ends_in_time_and_can_be_repeated(
    server: Server, session: Session, kind: str
) -> None:
    sandbox = session.sandbox().start().result(30)
    # A broken connection is tried again once, a silent one is not.
    server.fault(DELETE, kind, times=1 if kind == "stall" else 2)
    assert isinstance(raised(sandbox.stop()), ProviderUnavailableError)
    sandbox.stop().result(30)
    assert server.alive == []


def test_a_sandbox_that_ends_under_a_command(server: Server, session: Session) -> None:
    process = session.sandbox().exec(["sh", "-c", "echo ready; sleep 1000"])
    assert next(iter(process.stdout.lines())) == "ready"
    server.kill_sandboxes()
    assert isinstance(raised(process, 2), SandboxTerminatedError)


def test_a_sandbox_that_ends_before_a_command(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.kill_sandboxes()
    error = raised(sandbox.exec(["true"]), 2)
    assert isinstance(error, SandboxTerminatedError | SandboxNotFoundError)


def test_stopping_a_missing_sandbox_succeeds(server: Server, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    server.kill_sandboxes()
    sandbox.stop().result(30)


def test_listings_go_through_all_pages(server: Server, session: Session) -> None:
    sandboxes: list[Sandbox] = [session.sandbox(tags={"page": "1"}) for _ in range(7)]
    for start in [sandbox.start() for sandbox in sandboxes]:
        start.result(60)
    server.clear()
    found = session.list({"page": "1"}).result(30)
    assert {info.id for info in found} == {sandbox.id for sandbox in sandboxes}
    assert server.requests.count(LIST) == 3  # the emulator gives three a page


def test_a_failed_page_raises_instead_of_a_short_list(server: Server, session: Session) -> None:
    for start in [session.sandbox().start() for _ in range(4)]:
        start.result(60)
    server.fault(LIST, "reset", skip=1)
    assert isinstance(raised(session.list(), 2), ProviderUnavailableError)


def test_a_wrong_key_is_refused(server: Server) -> None:
    with (
        mock.patch.dict(os.environ, {"E2B_API_KEY": "e2b_wrong"}),
        Session("e2b") as session,
    ):
        error = raised(session.sandbox().start())
    assert isinstance(error, AuthenticationError)
    assert "E2B_API_KEY" in str(error)


def test_an_unreachable_endpoint_fails_in_time(server: Server) -> None:
    closed = {"E2B_API_URL": "http://127.0.0.1:9"}
    with mock.patch.dict(os.environ, closed):
        # The SDK tries to connect for two seconds before it says that nobody listens.
        provider = E2BProvider(timeout=10)
        with Session(provider) as session:
            error = raised(session.sandbox().start(), 10)
        Operation(provider.aclose()).result(30)
    assert isinstance(error, ProviderUnavailableError)


def test_a_start_that_is_cancelled_leaves_nothing(server: Server, session: Session) -> None:
    for delay in (0.0, 0.01, 0.1, 0.5, 1.0):
        sandbox = session.sandbox()
        sandbox.start()
        time.sleep(delay)  # the moment of the stop is what varies
        sandbox.stop().result(30)
        assert server.alive == []
