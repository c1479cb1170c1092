"""Tests of each hosted vendor: whatever goes wrong on the way, a typed error or success in time."""

import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from sandboxkit import Operation, Session, errors
from tests.emulators._answers import compare, is_raised
from tests.hosted.vendor import Answer, Vendor


def outcome(operation: Operation[Any], seconds: float) -> errors.SandboxError | None:
    """The error of an operation, which comes in time and is one of ours."""
    started = time.monotonic()
    error = operation.exception(90)
    took = time.monotonic() - started
    assert took < seconds, f"took {took:.1f} s"
    assert error is None or isinstance(error, errors.SandboxError), repr(error)
    return error


class FaultsConformance:
    """Answers that are no success, lost answers, broken connections, sandboxes that end."""

    vendor: ClassVar[Vendor]

    def outcome(self, operation: Operation[Any], calls: int = 1) -> errors.SandboxError | None:
        """The error of an operation, which comes within its calls' deadline and is the vendor's."""
        error = outcome(operation, calls * self.vendor.timeout + 12)
        assert error is None or error.provider == self.vendor.name
        return error

    def unavailable(self, operation: Operation[Any], calls: int = 1) -> None:
        """Require an error that says that it may be tried again."""
        error = self.outcome(operation, calls)
        assert isinstance(error, errors.ProviderUnavailableError), repr(error)
        assert error.retryable

    def test_an_answer_is_the_error_of_the_table(
        self,
        server: Any,
        session: Session,
        other: Session,
        monkeypatch: pytest.MonkeyPatch,
        answered: tuple[str, Answer],
    ) -> None:
        monkeypatch.setenv("MODAL_MAX_THROTTLE_WAIT", "1")  # its SDK itself waits, else
        call, answer = answered
        sandbox = session.sandbox()
        # Somebody else's way to a sandbox has yet to be made.
        theirs = sandbox
        if call not in self.vendor.starts:
            sandbox.start().result(30)
            theirs = other.from_id(str(sandbox.id)).result(30)
        calls: dict[str, Callable[[], Operation[Any]]] = {
            "list": session.list,
            "get": sandbox.status,
            "stop": sandbox.stop,
            "renew": lambda: sandbox.renew(100),
            "connect": lambda: theirs.exec(["true"]),
            "way": lambda: theirs.exec(["true"]),
            "input": lambda: theirs.exec(["cat"], stdin=b"given all the same", check=True),
            "order": lambda: sandbox.exec(["sleep", "1"]),
        }
        # A stop is repeated once where its answer is missing.
        self.vendor.refuse(server, call, answer, 2 if call == "stop" else 1)
        # What a connection does not carry is not known before its agent is taken for silent.
        error = self.outcome(calls.get(call, sandbox.start)(), 20 if call == "order" else 2)
        assert is_raised(error, self.vendor.row(answer)), repr(error)
        server.clear()
        if call in self.vendor.starts and error is not None:
            assert server.alive == []
        if answer.raised in (errors.ProviderUnavailableError, errors.CapacityError):
            assert error is not None
            assert error.retryable

    def test_the_document_has_the_answers(self) -> None:
        compare(self.vendor.document, self.vendor.rows())

    def test_a_start_that_fails_on_the_way_leaves_nothing(
        self, server: Any, session: Session, on_the_way: tuple[str, str]
    ) -> None:
        request, kind = on_the_way
        self.vendor.fault(server, request, kind)
        sandbox = session.sandbox()
        error = self.outcome(sandbox.start(), 3)
        if error is None:  # it was made although the answer said nothing, and it was found
            assert request == self.vendor.requests["create"]
            assert kind in self.vendor.lost
            assert server.alive == [sandbox.id]
        else:
            assert isinstance(error, errors.ProviderUnavailableError), repr(error)
            assert error.retryable
            assert server.alive == []

    def test_a_creation_whose_answer_is_lost_is_found_again(
        self, server: Any, session: Session, lost: str
    ) -> None:
        self.vendor.fault(server, self.vendor.requests["create"], lost, times=1)
        sandbox = session.sandbox()
        assert self.outcome(sandbox.start(), 2) is None
        assert server.alive == [sandbox.id]
        assert sandbox.exec(["echo", "adopted"]).result(30).stdout == "adopted\n"

    def test_a_listing_that_fails_is_an_error_in_time(
        self, server: Any, session: Session, broken: str
    ) -> None:
        session.sandbox().start().result(30)
        self.vendor.fault(server, self.vendor.requests["list"], broken)
        self.unavailable(session.list())

    def test_a_stop_that_fails_can_be_repeated(
        self, server: Any, session: Session, stopping: str
    ) -> None:
        sandbox = session.sandbox().start().result(30)
        self.vendor.fault(server, self.vendor.requests["stop"], stopping)
        self.unavailable(sandbox.stop(), 2)
        server.clear()
        sandbox.stop().result(30)
        assert server.alive == []

    def test_a_sandbox_that_ends_under_a_command_has_terminated(
        self, server: Any, session: Session
    ) -> None:
        sandbox = session.sandbox()
        process = sandbox.exec(["sh", "-c", "echo ready; exec sleep 1000"])
        assert next(iter(process.stdout.lines())) == "ready"
        server.kill_sandboxes()
        error = self.outcome(process, 2)
        assert isinstance(error, errors.SandboxTerminatedError), repr(error)
        assert not error.by_command

    def test_a_listing_goes_through_all_pages_or_raises(
        self, server: Any, session: Session
    ) -> None:
        sandboxes = [session.sandbox(tags={"page": "1"}) for _ in range(7)]
        for start in [sandbox.start() for sandbox in sandboxes]:
            start.result(60)
        server.clear()
        found = session.list({"page": "1"}).result(30)
        assert {info.id for info in found} == {sandbox.id for sandbox in sandboxes}
        request = self.vendor.requests["list"]
        assert server.requests.count(request) == self.vendor.pages
        self.vendor.fault(server, request, "reset", skip=1)
        self.unavailable(session.list(), 2)

    def test_a_full_account_is_a_capacity_error_until_a_sandbox_ends(
        self, server: Any, session: Session
    ) -> None:
        self.vendor.fill(server, 1)
        first = session.sandbox().start().result(30)
        error = self.outcome(session.sandbox().start())
        assert isinstance(error, errors.CapacityError)
        assert error.retryable
        assert "1" in str(error)
        first.stop().result(30)
        session.sandbox().start().result(30)

    def test_a_wrong_key_is_refused_by_its_variable(
        self, server: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name, value = self.vendor.wrong_key
        monkeypatch.setenv(name, value)
        provider = self.vendor.provider()
        with Session(provider) as session:
            error = self.outcome(session.sandbox().start())
        assert isinstance(error, errors.AuthenticationError)
        assert name in str(error)
        found = Operation(provider.diagnose()).result(30)
        assert not found.available
        assert name in found.remedy
        Operation(provider.aclose()).result(30)

    def test_an_unreachable_address_fails_in_time(
        self, server: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(*self.vendor.nowhere)
        provider = self.vendor.provider(self.vendor.patience)
        with Session(provider) as session:
            self.unavailable(session.sandbox().start(), 6)
        Operation(provider.aclose()).result(30)
