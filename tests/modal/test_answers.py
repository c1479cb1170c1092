"""Each answer of Modal that is no success is the error that ANSWERS.md says, and soon."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import Operation, Session
from sandboxkit.providers import modal
from sandboxkit.providers.modal import ModalProvider
from tests.emulators._answers import compare, is_raised
from tests.emulators.modal.client import ModalEmulator
from tests.modal.answers import ANSWERS, REQUESTS, Answer, rows
from tests.modal.conftest import TIMEOUT
from tests.modal.test_faults import within

DOCUMENT = Path(str(modal.__file__)).resolve().with_name("ANSWERS.md")
CASES = [(call, answer) for answer in ANSWERS for call in answer.calls]


@pytest.mark.parametrize(
    ("call", "answer"),
    CASES,
    ids=[f"{index}-{call}-{answer.status}" for index, (call, answer) in enumerate(CASES)],
)
def test_an_answer_is_the_error_of_the_table(
    emulator: ModalEmulator,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    answer: Answer,
) -> None:
    monkeypatch.setenv("MODAL_MAX_THROTTLE_WAIT", "1")  # the SDK itself waits, else
    new = session.sandbox()
    sandbox = new if call in ("create", "agent") else new.start().result(30)
    if call == "way":
        session = Session(ModalProvider(timeout=TIMEOUT))  # another's, which has none yet
        sandbox = session.from_id(str(sandbox.id)).result(30)
    calls: dict[str, Callable[[], Operation[Any]]] = {
        "create": sandbox.start,
        "list": session.list,
        "get": sandbox.status,
        "agent": sandbox.start,
        "way": lambda: sandbox.exec(["true"]),
        "order": lambda: sandbox.exec(["sleep", "1"]),
    }
    rule: dict[str, object] = {"status": answer.status, "message": answer.message}
    if answer.retry_after is not None:
        rule["retry_after"] = answer.retry_after
    emulator.fault(REQUESTS[call], "http" if isinstance(answer.status, int) else "status", **rule)
    operation = calls[call]()
    # What a connection does not carry is not known before its agent is taken for silent.
    bound = 60.0 if call == "order" else 2 * TIMEOUT + 3
    error = within(bound, lambda: operation.exception(60))
    assert is_raised(error, answer.row), repr(error)
    emulator.ask("calm")
    session.close().result(30)


def test_the_document_says_so() -> None:
    compare(DOCUMENT, rows())
