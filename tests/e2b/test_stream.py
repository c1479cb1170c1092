"""A program's input and output through E2B's calls: exact, bounded, and nothing left of it."""

import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import anyio
import pytest

from sandboxkit import Operation, OutcomeUnknownError, Sandbox, Session
from sandboxkit.errors import ProviderUnavailableError, SandboxNotFoundError
from sandboxkit.providers.e2b import E2BProvider, _stream
from sandboxkit.providers.e2b._machine import Machine
from sandboxkit.providers.e2b._run import run
from sandboxkit.providers.e2b._stream import E2BProgram
from tests.e2b.server import E2BServer

T = TypeVar("T")

START, STREAMED, CALLED = "/process.Process/Start", "StreamInput", "SendInput"
PATIENCE = 30.0
UNKNOWN = {"code": "unimplemented", "message": "process.Process.StreamInput is not implemented"}

streamed_or_called = pytest.mark.parametrize("streams", [True, False], ids=["streamed", "called"])


def wait(work: Coroutine[Any, Any, T]) -> T:
    return Operation(work).result(2 * PATIENCE)


def eventually(condition: Callable[[], bool]) -> None:
    """Return when it holds; fail when it never does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def sandbox(session: Session) -> Sandbox:
    return session.sandbox().start().result(PATIENCE)


@pytest.fixture
def machine(provider: E2BProvider, sandbox: Sandbox) -> Machine:
    assert sandbox.id is not None
    machine = provider._known(sandbox.id).machine
    assert machine is not None
    return machine


async def read(program: E2BProgram, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += await program.receive()
    return found


async def all_of(program: E2BProgram) -> bytes:
    found = b""
    try:
        while True:
            found += await program.receive()
    except anyio.EndOfStream:
        return found


@streamed_or_called
def test_every_byte_value_passes_both_ways(machine: Machine, streams: bool) -> None:
    machine.streams = streams
    every = bytes(range(256)) * 3

    async def talk() -> bytes:
        program = await run(machine, ("cat",))
        await program.send(every)
        found = await read(program, len(every))
        await program.aclose()
        return found

    assert wait(talk()) == every


@streamed_or_called
def test_eight_megabytes_pass_both_ways_at_once(machine: Machine, streams: bool) -> None:
    machine.streams = streams
    data = bytes(index * index % 251 for index in range(1 << 16)) * 128

    async def talk() -> bytes:
        found = b""
        program = await run(machine, ("cat",))
        async with anyio.create_task_group() as group:
            group.start_soon(program.send, data)
            found = await read(program, len(data))
        await program.aclose()
        return found

    assert wait(talk()) == data


def test_the_first_program_shows_whether_an_input_can_be_streamed(
    server: E2BServer, machine: Machine
) -> None:
    assert machine.streams is True
    assert not any(CALLED in request for request in server.requests)
    assert sum(STREAMED in request for request in server.requests) == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, "404 page not found"), (501, UNKNOWN), (405, ""), (505, "<html>HTTP/2 only</html>")],
)
def test_an_input_that_cannot_be_streamed_goes_in_calls(
    server: E2BServer, session: Session, status: int, body: Any
) -> None:
    server.fault(STREAMED, "status", status=status, body=body)
    sandbox = session.sandbox().start().result(2 * PATIENCE)
    data = b"x" * (3 << 20)
    assert sandbox.exec(["wc", "-c"], stdin=data).result(PATIENCE).stdout.strip() == str(len(data))
    server.break_connections()
    assert sandbox.exec(["echo", "again"]).result(PATIENCE).stdout == "again\n"
    assert sum(STREAMED in request for request in server.requests) == 1
    assert any(CALLED in request for request in server.requests)


def test_a_proxy_that_holds_inputs_is_noticed(server: E2BServer, session: Session) -> None:
    server.hold_inputs()
    sandbox = session.sandbox().start().result(2 * PATIENCE)
    assert sandbox.exec(["cat"], stdin=b"through").result(PATIENCE).stdout == "through"
    assert sum(STREAMED in request for request in server.requests) == 1


def test_a_proxy_that_begins_to_hold_inputs_is_noticed(
    server: E2BServer, machine: Machine, sandbox: Sandbox
) -> None:
    server.hold_inputs()
    server.break_connections()
    first = sandbox.exec(["true"]).exception(2 * PATIENCE)
    assert first is None or isinstance(first, OutcomeUnknownError | ProviderUnavailableError)
    eventually(lambda: machine.streams is False)
    # Until the connection is replaced, a call says that nothing was sent.
    eventually(lambda: sandbox.exec(["echo", "there"]).exception(2 * PATIENCE) is None)


def test_a_quiet_input_sends_keepalives(
    server: E2BServer, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stream, "KEEP_ALIVE", 0.05)

    async def talk() -> bytes:
        program = await run(machine, ("cat",))
        before = server.kept_alive
        while server.kept_alive < before + 3:
            await anyio.sleep(0.02)
        await program.send(b"and nothing of that came here")
        found = await program.receive()
        await program.aclose()
        return found

    assert wait(talk()) == b"and nothing of that came here"


def test_a_program_that_is_missing_ends_and_says_why(machine: Machine) -> None:
    async def talk() -> tuple[bytes, bytes]:
        program = await run(machine, ("no-such-program",))
        found = await all_of(program)
        await program.aclose()
        return found, program.diagnostics

    found, output = wait(talk())
    assert found == b""
    assert b"no-such-program" in output


def test_stderr_is_kept_and_bounded(machine: Machine) -> None:
    async def talk() -> tuple[bytes, bytes]:
        script = "for i in $(seq 2000); do echo line $i >&2; done; printf done"
        program = await run(machine, ("sh", "-c", script))
        found = await all_of(program)
        await program.aclose()
        return found, program.diagnostics

    found, output = wait(talk())
    assert found == b"done"
    assert len(output) == 2000
    assert output.endswith(b"line 2000\n")


@streamed_or_called
def test_bytes_sent_before_the_close_arrive(
    machine: Machine, sandbox: Sandbox, streams: bool
) -> None:
    machine.streams = streams

    async def talk() -> None:
        program = await run(machine, ("sh", "-c", "cd /workspace && cat >part && mv part whole"))
        await program.send(b"x" * 1_000_000)
        await program.aclose()

    wait(talk())
    eventually(lambda: sandbox.exec(["test", "-e", "whole"]).result(PATIENCE).returncode == 0)
    assert len(sandbox.read_file("/workspace/whole").result(PATIENCE)) == 1_000_000


@pytest.mark.parametrize("argv", [("cat",), ("sleep", "1000"), ("cat", "/dev/zero")])
def test_a_closed_stream_leaves_no_program(
    server: E2BServer, machine: Machine, argv: tuple[str, ...]
) -> None:
    before = server.programs

    async def talk() -> None:
        program = await run(machine, argv)
        assert len(server.programs) == len(before) + 1
        await program.aclose()
        await program.aclose()

    wait(talk())
    eventually(lambda: server.programs == before)


def test_a_start_that_is_cancelled_leaves_no_program(server: E2BServer, machine: Machine) -> None:
    before = server.programs

    async def cancelled(seconds: float) -> None:
        with anyio.move_on_after(seconds):
            program = await run(machine, ("sleep", "1000"))
            await program.aclose()

    for seconds in (0.0, 0.001, 0.003, 0.01):
        wait(cancelled(seconds))
    eventually(lambda: server.programs == before)


def test_a_program_that_reads_nothing_blocks_its_sender_but_not_close(machine: Machine) -> None:
    raised: list[type[BaseException]] = []
    sent = 0

    async def send(program: E2BProgram) -> None:
        nonlocal sent
        try:
            while True:
                await program.send(bytes(1 << 18))
                sent += 1 << 18
        except anyio.ClosedResourceError as error:
            raised.append(type(error))

    async def receive(program: E2BProgram) -> None:
        try:
            await program.receive()
        except anyio.ClosedResourceError as error:
            raised.append(type(error))

    async def talk() -> None:
        program = await run(machine, ("sleep", "1000"))
        async with anyio.create_task_group() as group:
            group.start_soon(send, program)
            group.start_soon(receive, program)
            before = -1
            while before != sent:
                before = sent
                await anyio.sleep(1)
            await program.aclose()

    wait(talk())
    assert raised == [anyio.ClosedResourceError] * 2
    assert 0 < sent < 64 << 20  # what the connection and the transport hold


def test_unread_output_blocks_the_program(machine: Machine) -> None:
    async def talk() -> int:
        program = await run(machine, ("cat", "/dev/zero"))
        await anyio.sleep(1)
        held = len(program._output._held)
        await program.aclose()
        return held

    assert 0 < wait(talk()) < 2 << 20


@pytest.mark.parametrize("aside", [START, STREAMED])
def test_a_broken_call_does_not_end_the_program(
    server: E2BServer, machine: Machine, aside: str
) -> None:
    server.fault(aside, "reset_mid_body" if aside == START else "reset", times=1)

    async def talk() -> None:
        program = await run(machine, ("sh", "-c", "read -r line; exec cat /dev/zero"))
        try:
            while True:
                await program.send(b"\n")
                await program.receive()
        finally:
            await program.aclose()

    with pytest.raises(anyio.BrokenResourceError):
        wait(talk())


def test_a_sandbox_that_has_ended_is_not_found(server: E2BServer, machine: Machine) -> None:
    server.kill_sandboxes()

    async def talk() -> None:
        with pytest.raises(SandboxNotFoundError):
            await run(machine, ("true",))

    wait(talk())
