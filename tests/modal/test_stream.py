"""The byte stream of one program in a sandbox: exact, bounded, and broken rather than wrong."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import pytest

from sandboxkit import Operation, ProviderUnavailableError, SandboxNotFoundError, Session
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers.modal import ModalProvider
from tests.emulators.modal.client import ModalEmulator

T = TypeVar("T")
Use = Callable[[Callable[[ProgramStream], Awaitable[Any]], tuple[str, ...]], Any]
"""Any: whatever the action returns, as each test knows it."""

SECONDS = 60.0
ALL_BYTES = bytes(range(256))
LATER = 30.0
"""Seconds for what happens soon, on a machine that does much else."""


@pytest.fixture
def sandbox_id(session: Session) -> str:
    """A sandbox that has started."""
    return str(session.sandbox().start().result(SECONDS).id)


@pytest.fixture
def use(provider: ModalProvider, sandbox_id: str) -> Use:
    """Start a program in the sandbox, do something with its stream, and close it."""

    def using(action: Callable[[ProgramStream], Awaitable[T]], argv: tuple[str, ...]) -> T:
        async def run() -> T:
            async with await provider._run(sandbox_id, argv) as stream:
                return await action(stream)

        return Operation(run()).result(SECONDS)

    return using


async def everything(stream: ProgramStream) -> bytes:
    """All output up to the end."""
    received = b""
    while True:
        try:
            received += await stream.receive()
        except anyio.EndOfStream:
            return received


async def echoed(stream: ProgramStream, size: int) -> bytes:
    """So many bytes of output."""
    received = bytearray()
    while len(received) < size:
        received += await stream.receive()
    return bytes(received)


def test_every_byte_value_passes_both_ways_unchanged(use: Use) -> None:
    async def action(stream: ProgramStream) -> bytes:
        await stream.send(ALL_BYTES)
        return await echoed(stream, len(ALL_BYTES))

    assert use(action, ("cat",)) == ALL_BYTES


def test_large_transfers_pass_both_ways_at_once(use: Use) -> None:
    data = ALL_BYTES * (8 << 12)

    async def action(stream: ProgramStream) -> bytes:
        received = b""
        async with anyio.create_task_group() as group:
            group.start_soon(stream.send, data)
            received = await echoed(stream, len(data))
        return received

    assert use(action, ("cat",)) == data


def test_receive_returns_at_most_the_requested_bytes(use: Use) -> None:
    async def action(stream: ProgramStream) -> list[bytes]:
        return [await stream.receive(3) for _ in range(2)]

    assert use(action, ("sh", "-c", "printf abcdef; cat")) == [b"abc", b"def"]


def test_the_end_of_a_program_ends_the_stream_and_keeps_stderr(use: Use) -> None:
    async def action(stream: ProgramStream) -> tuple[bytes, bytes]:
        return await everything(stream), stream.diagnostics

    script = "echo out; seq 1000000 >&2; echo why >&2; exit 3"
    output, text = use(action, ("sh", "-c", script))
    assert output == b"out\n"
    assert text.endswith(b"\n1000000\nwhy\n")
    assert len(text) == 2000


def test_a_missing_program_ends_the_stream_and_says_so(use: Use) -> None:
    async def action(stream: ProgramStream) -> tuple[bytes, bytes]:
        return await everything(stream), stream.diagnostics

    output, text = use(action, ("no-such-program",))
    assert output == b""
    assert b"no-such-program" in text


def test_a_receive_that_is_cancelled_loses_nothing(use: Use) -> None:
    async def action(stream: ProgramStream) -> bytes:
        received, expected = bytearray(), 6 * 200
        while len(received) < expected:
            with anyio.move_on_after(0.003):
                while True:
                    received += await stream.receive()
        return bytes(received)

    script = "i=0; while [ $i -lt 200 ]; do printf '%05d\\n' $i; i=$((i+1)); done; cat"
    expected = b"".join(b"%05d\n" % number for number in range(200))
    assert use(action, ("sh", "-c", script)) == expected


def test_a_program_that_reads_nothing_blocks_the_sender(use: Use) -> None:
    async def action(stream: ProgramStream) -> int:
        sent = 0
        with anyio.move_on_after(2):
            while True:
                await stream.send(bytes(1 << 20))
                sent += 1
        return sent

    assert use(action, ("sleep", "1000")) < 8


def test_unread_output_blocks_the_program(use: Use, sandbox_id: str) -> None:
    script = """
import os
written = 0
while written < 512 << 20:
    written += os.write(1, bytes(1 << 16))
    open("/tmp/written", "w").write(str(written))
"""

    another = ModalProvider()  # the unread output fills what its connection may hold

    async def action(stream: ProgramStream) -> int:
        written = -1
        while True:
            await anyio.sleep(1.5)
            async with await another._run(sandbox_id, ("cat", "/tmp/written")) as output:
                before, written = written, int(await everything(output) or 0)
            if before == written > 0:
                await another.aclose()
                return written

    # The 64 MiB that the SDK lets come before anybody reads, and what the two sides buffer.
    assert use(action, ("python3", "-c", script)) < (64 + 16) << 20


@pytest.mark.parametrize("forced", [False, True])
def test_closing_ends_the_programs_input(
    use: Use, provider: ModalProvider, sandbox_id: str, forced: bool
) -> None:
    async def action(stream: ProgramStream) -> bytes:
        await stream.send(b"x")
        assert await stream.receive() == b"x"
        if forced:
            await anyio.aclose_forcefully(stream)
        else:
            await stream.aclose()
        await stream.aclose()
        for call in (stream.receive, lambda: stream.send(b"x")):
            with pytest.raises(anyio.ClosedResourceError):
                await call()
        return b""

    use(action, ("sh", "-c", "cat; echo ended >/tmp/ended"))
    assert eventually(use, "cat /tmp/ended") == b"ended\n"


def test_closing_wakes_receivers_and_senders(use: Use) -> None:
    woken: list[str] = []

    async def action(stream: ProgramStream) -> None:
        async def receiving() -> None:
            with pytest.raises(anyio.ClosedResourceError):
                await stream.receive()
            woken.append("receiver")

        async def sending() -> None:
            with pytest.raises(anyio.ClosedResourceError):
                await stream.send(bytes(64 << 20))
            woken.append("sender")

        async with anyio.create_task_group() as group:
            group.start_soon(receiving)
            group.start_soon(sending)
            await anyio.sleep(1)
            with anyio.fail_after(LATER):
                await anyio.aclose_forcefully(stream)

    use(action, ("sleep", "1000"))
    assert sorted(woken) == ["receiver", "sender"]


def test_a_start_that_is_cancelled_leaves_no_program(
    emulator: ModalEmulator, provider: ModalProvider, sandbox_id: str, use: Use
) -> None:
    emulator.fault("TaskExecStart", "silent", times=1)
    marked = ("sh", "-c", "cat; echo ended >/tmp/ended", "marked")

    async def cancelled() -> None:
        with anyio.move_on_after(0.5):
            await provider._run(sandbox_id, marked)
            raise AssertionError("it was answered")

    Operation(cancelled()).result(SECONDS)
    emulator.ask("calm")
    assert eventually(use, "cat /tmp/ended") == b"ended\n"


@pytest.mark.parametrize("way", ["cut", "forget"])
def test_a_break_is_bridged_exactly_or_reported(
    emulator: ModalEmulator, use: Use, way: str
) -> None:
    """The SDK carries on by offsets where the worker still knows the program; else the stream breaks."""
    data = ALL_BYTES * 40_000

    async def action(stream: ProgramStream) -> bytes:
        received = bytearray()

        async def sending() -> None:
            try:
                for at in range(0, len(data), 100_000):
                    await stream.send(data[at : at + 100_000])
            except anyio.BrokenResourceError:
                assert way == "forget"

        async with anyio.create_task_group() as group:
            group.start_soon(sending)
            broken = 0
            try:
                while len(received) < len(data):
                    received += await stream.receive()
                    if len(received) > (broken + 1) * len(data) // 4:
                        broken += 1
                        await anyio.to_thread.run_sync(emulator.ask, way)
            except anyio.BrokenResourceError:
                assert way == "forget"
                group.cancel_scope.cancel()
        return bytes(received)

    received = use(action, ("cat",))
    assert isinstance(received, bytes)
    assert data.startswith(received)
    assert (received == data) == (way == "cut")


@pytest.mark.parametrize("call", ["TaskExecStdioRead", "TaskExecStdinWrite"])
def test_a_refusal_by_modal_breaks_the_stream(emulator: ModalEmulator, use: Use, call: str) -> None:
    async def action(stream: ProgramStream) -> bytes:
        with pytest.raises(anyio.BrokenResourceError):
            await (stream.receive() if call == "TaskExecStdioRead" else stream.send(b"x"))
        with pytest.raises(anyio.BrokenResourceError):
            await stream.receive()
        return stream.diagnostics

    emulator.fault(call, "status", status="RESOURCE_EXHAUSTED", message="too many requests")
    assert use(action, ("cat",)) == b"too many requests"


def test_an_ended_sandbox_breaks_the_stream_for_good(
    emulator: ModalEmulator, provider: ModalProvider, sandbox_id: str, use: Use
) -> None:
    async def action(stream: ProgramStream) -> None:
        assert await stream.receive() == b"up\n"
        await anyio.to_thread.run_sync(lambda: emulator.ask("end", sandbox_id=sandbox_id))
        with pytest.raises(anyio.BrokenResourceError):
            await stream.receive()
        with pytest.raises(SandboxNotFoundError):
            await provider._run(sandbox_id, ("true",))

    use(action, ("sh", "-c", "echo up; cat"))


def test_a_program_starts_over_a_handle_that_another_call_has_closed(
    provider: ModalProvider, sandbox_id: str
) -> None:
    async def run() -> bytes:
        handle = await provider._handle(sandbox_id)
        await handle.detach.aio()  # type: ignore[no-untyped-call]  # the stub lacks the types
        async with await provider._run(sandbox_id, ("echo", "fine")) as stream:
            return await everything(stream)

    assert Operation(run()).result(SECONDS) == b"fine\n"


@pytest.mark.parametrize("kind", ["status", "reset", "stall"])
def test_a_failed_program_start_is_retryable(
    emulator: ModalEmulator, provider: ModalProvider, sandbox_id: str, kind: str
) -> None:
    rule = {"status": "UNAVAILABLE"} if kind == "status" else {}
    emulator.fault("TaskExecStart", kind, **rule)
    error = Operation(provider._run(sandbox_id, ("true",))).exception(SECONDS)
    assert type(error) is ProviderUnavailableError
    assert error.retryable
    emulator.ask("calm")

    async def again() -> bytes:
        async with await provider._run(sandbox_id, ("echo", "fine")) as stream:
            return await everything(stream)

    assert Operation(again()).result(SECONDS) == b"fine\n"


def eventually(use: Use, script: str) -> object:
    """What a script says as soon as it says anything."""
    end = time.monotonic() + LATER
    while not (output := use(everything, ("sh", "-c", script))):
        assert time.monotonic() < end
        time.sleep(0.1)
    return output
