"""A program's input and output through E2B's calls: exact, bounded, and nothing left of it."""

from typing import Any

import anyio
import pytest

from sandboxkit import OutcomeUnknownError, Sandbox, Session
from sandboxkit.errors import ProviderUnavailableError
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers.e2b import E2BProvider, _stream
from sandboxkit.providers.e2b._machine import Machine
from tests.emulators._server import Server
from tests.hosted.streams import Use
from tests.hosted.vendor import eventually

START, STREAMED, CALLED = "/process.Process/Start", "StreamInput", "SendInput"
PATIENCE = 30.0
UNKNOWN = {"code": "unimplemented", "message": "process.Process.StreamInput is not implemented"}


@pytest.fixture
def machine(provider: E2BProvider, sandbox: Sandbox) -> Machine:
    assert sandbox.id is not None
    machine = provider.box(sandbox.id).machine
    assert machine is not None
    return machine


def test_the_first_program_shows_whether_an_input_can_be_streamed(
    server: Server, provider: E2BProvider, session: Session
) -> None:
    session.sandbox().start().result(PATIENCE)
    assert provider.account.streams is True
    assert not any(CALLED in request for request in server.requests)
    assert sum(STREAMED in request for request in server.requests) == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, "404 page not found"), (501, UNKNOWN), (405, ""), (505, "<html>HTTP/2 only</html>")],
)
def test_an_input_that_cannot_be_streamed_goes_in_calls(
    server: Server, session: Session, status: int, body: Any
) -> None:
    server.fault(STREAMED, "status", status=status, body=body)
    sandbox = session.sandbox().start().result(2 * PATIENCE)
    data = b"x" * (3 << 20)
    assert sandbox.exec(["wc", "-c"], stdin=data).result(PATIENCE).stdout.strip() == str(len(data))
    server.break_connections()
    assert sandbox.exec(["echo", "again"]).result(PATIENCE).stdout == "again\n"
    assert sum(STREAMED in request for request in server.requests) == 1
    assert any(CALLED in request for request in server.requests)


def test_a_proxy_that_holds_inputs_is_noticed(server: Server, session: Session) -> None:
    server.set(hold=True)
    sandbox = session.sandbox().start().result(2 * PATIENCE)
    assert sandbox.exec(["cat"], stdin=b"through").result(PATIENCE).stdout == "through"
    assert sum(STREAMED in request for request in server.requests) == 1


def test_a_proxy_that_begins_to_hold_inputs_is_noticed(
    server: Server, machine: Machine, sandbox: Sandbox
) -> None:
    server.set(hold=True)
    server.break_connections()
    first = sandbox.exec(["true"]).exception(2 * PATIENCE)
    assert first is None or isinstance(first, OutcomeUnknownError | ProviderUnavailableError)
    eventually(lambda: machine.account.streams is False)
    # Until the connection is replaced, a call says that nothing was sent.
    eventually(lambda: sandbox.exec(["echo", "there"]).exception(2 * PATIENCE) is None)


def test_a_quiet_input_sends_keepalives(
    server: Server, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stream, "KEEP_ALIVE", 0.05)

    async def talk(program: ProgramStream) -> bytes:
        before = server.state["kept_alive"]
        while server.state["kept_alive"] < before + 3:
            await anyio.sleep(0.02)
        await program.send(b"and nothing of that came here")
        return await program.receive()

    assert use(talk, ("cat",)) == b"and nothing of that came here"


def test_unread_output_blocks_the_program(use: Use) -> None:
    async def talk(program: Any) -> int:  # Any: E2B's
        await anyio.sleep(1)
        return len(program._output._held)

    assert 0 < use(talk, ("cat", "/dev/zero")) < 2 << 20


@pytest.mark.parametrize("aside", [START, STREAMED])
def test_a_broken_call_does_not_end_the_program(server: Server, use: Use, aside: str) -> None:
    server.fault(aside, "reset_mid_body" if aside == START else "reset", times=1)

    async def talk(program: ProgramStream) -> None:
        while True:
            await program.send(b"\n")
            await program.receive()

    with pytest.raises(anyio.BrokenResourceError):
        use(talk, ("sh", "-c", "read -r line; exec cat /dev/zero"))
