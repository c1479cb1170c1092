"""Each answer of E2B that is no success is the error that ANSWERS.md says, and soon."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import Operation, SandboxError, Session
from sandboxkit.errors import CapacityError, ProviderUnavailableError
from sandboxkit.providers import e2b
from sandboxkit.providers.e2b import E2BProvider
from tests.e2b.answers import ANSWERS, REQUESTS, Answer, rows
from tests.e2b.conftest import TIMEOUT
from tests.emulators._answers import compare, is_raised
from tests.emulators._server import Server

DOCUMENT = Path(str(e2b.__file__)).resolve().with_name("ANSWERS.md")
CASES = [(call, answer) for answer in ANSWERS for call in answer.calls]


@pytest.fixture
def other(server: Server) -> Iterator[Session]:
    """A session of another process, so to say."""
    provider = E2BProvider(timeout=TIMEOUT)
    with Session(provider) as session:
        yield session
        server.clear()
    Operation(provider.aclose()).result(30)


@pytest.mark.parametrize(
    ("call", "answer"),
    CASES,
    ids=[f"{index}-{call}-{answer.status}" for index, (call, answer) in enumerate(CASES)],
)
def test_an_answer_is_the_error_of_the_table(
    server: Server, session: Session, other: Session, call: str, answer: Answer
) -> None:
    sandbox = session.sandbox() if call == "create" else session.sandbox().start().result(30)
    # Somebody else's way to it has yet to be made.
    theirs = other.from_id(str(sandbox.id)).result(30) if call in ("connect", "input") else sandbox
    headers = {"content-type": answer.kind, **answer.headers}
    times = 2 if call == "stop" else 1  # which is repeated once where its answer is missing
    server.fault(
        REQUESTS[call],
        "status",
        times=times,
        status=answer.status,
        body=answer.body,
        headers=headers,
    )
    calls: dict[str, Callable[[], Operation[Any]]] = {
        "create": sandbox.start,
        "list": session.list,
        "get": sandbox.status,
        "stop": sandbox.stop,
        "renew": lambda: sandbox.renew(100),
        "connect": lambda: theirs.exec(["true"]),
        "input": lambda: theirs.exec(["cat"], stdin=b"given all the same", check=True),
    }
    started = time.monotonic()
    error = calls[call]().exception(60)
    server.clear()
    assert time.monotonic() - started < 3 * TIMEOUT + 10
    assert is_raised(error, answer.row), repr(error)
    if answer.raised is None:
        return
    assert isinstance(error, SandboxError)
    assert error.provider == "e2b"
    if answer.raised in (ProviderUnavailableError, CapacityError):
        assert error.retryable


def test_the_document_says_so() -> None:
    compare(DOCUMENT, rows())
