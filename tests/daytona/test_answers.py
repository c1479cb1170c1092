"""Each answer of Daytona that is no success is the error that ANSWERS.md says, and soon."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import CapacityError, Operation, Session
from sandboxkit.providers import daytona
from tests.daytona.answers import ANSWERS, ENDS, HTML, JSON, REQUESTS, Answer, End, rows
from tests.daytona.conftest import TIMEOUT
from tests.daytona.test_faults import outcome
from tests.emulators._answers import compare, is_raised
from tests.emulators._server import Server

DOCUMENT = Path(str(daytona.__file__)).resolve().with_name("ANSWERS.md")
STARTS = ("create", "terminal")
CASES = [(call, answer) for answer in ANSWERS for call in answer.calls]


@pytest.mark.parametrize(
    ("call", "answer"),
    CASES,
    ids=[f"{index}-{call}-{answer.status}" for index, (call, answer) in enumerate(CASES)],
)
def test_an_answer_is_the_error_of_the_table(
    server: Server, session: Session, call: str, answer: Answer
) -> None:
    sandbox = session.sandbox()
    if call not in STARTS:
        sandbox.start().result(30)
    calls: dict[str, Callable[[], Operation[Any]]] = {
        "create": sandbox.start,
        "list": session.list,
        "get": sandbox.status,
        "stop": sandbox.stop,
        "renew": lambda: sandbox.renew(100),
        "terminal": sandbox.start,
    }
    kind = JSON if answer.body.startswith(("{", "null")) else HTML
    headers = {"content-type": kind, **answer.headers}
    fault = {"status": answer.status, "body": answer.body, "headers": headers}
    server.fault(REQUESTS[call], "status", times=2 if call == "stop" else 1, **fault)
    error = outcome(calls[call](), 2 * TIMEOUT + 10)
    assert is_raised(error, answer.row), repr(error)
    server.clear()
    if call in STARTS and error is not None:
        assert server.alive == []


@pytest.mark.parametrize("end", ENDS, ids=lambda end: f"{end.state}-{end.raised.__name__}")
def test_a_sandbox_that_does_not_start_is_the_error_of_the_table(
    server: Server, session: Session, end: End
) -> None:
    server.end_next_start(end.state, end.fields)
    error = outcome(session.sandbox().start())
    assert is_raised(error, end.row), repr(error)
    assert server.alive == []


def test_the_document_says_so() -> None:
    compare(DOCUMENT, rows())


def test_a_full_quota_is_free_again_after_a_stop(server: Server, session: Session) -> None:
    server.limit_cpus(2)
    first, second = (session.sandbox().start().result(30) for _ in range(2))
    third = session.sandbox()
    error = outcome(third.start())
    assert isinstance(error, CapacityError)
    assert error.retryable
    assert "Maximum allowed: 2" in str(error)
    first.stop().result(30)
    assert session.sandbox().exec(["echo", "hello"]).result(30).stdout == "hello\n"
    second.stop().result(30)


def test_an_error_names_the_request_and_the_remedy(server: Server, session: Session) -> None:
    message = {"statusCode": 400, "message": "Snapshot s1 is build_failed"}
    server.fault("POST /api/sandbox", "status", times=1, status=400, body=message)
    text = str(outcome(session.sandbox(image="snapshot:daytona-small").start()))
    assert "snapshot:daytona-small" in text
    assert "Snapshot s1 is build_failed" in text
    assert "build it again" in text
