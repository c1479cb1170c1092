"""The byte stream of one program in a sandbox: exact, bounded, and broken rather than wrong."""

from pathlib import Path

import anyio
import pytest

from sandboxkit import Operation, Sandbox
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers.modal import ModalProvider
from tests.emulators._server import Server
from tests.hosted.streams import ALL_BYTES, Use, everything

SECONDS = 60.0


def test_unread_output_blocks_the_program(use: Use, sandbox: Sandbox) -> None:
    script = Path(__file__).with_name("counts_what_it_writes.txt").read_text()
    another = ModalProvider()  # the unread output fills what its connection may hold

    async def action(stream: ProgramStream) -> int:
        written = -1
        while True:
            await anyio.sleep(1.5)
            async with await another.box(str(sandbox.id))._run(("cat", "/tmp/written")) as output:
                before, written = written, int(await everything(output) or 0)
            if before == written > 0:
                await another.aclose()
                return written

    # The 64 MiB that the SDK lets come before anybody reads, and what the two sides buffer.
    assert use(action, ("python3", "-c", script)) < (64 + 16) << 20


@pytest.mark.parametrize("way", ["break_connections", "forget"])
def test_a_break_is_bridged_exactly_or_reported(server: Server, use: Use, way: str) -> None:
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
                        await anyio.to_thread.run_sync(server.ask, way)
            except anyio.BrokenResourceError:
                assert way == "forget"
                group.cancel_scope.cancel()
        return bytes(received)

    received = use(action, ("cat",))
    assert isinstance(received, bytes)
    assert data.startswith(received)
    assert (received == data) == (way == "break_connections")


@pytest.mark.parametrize("call", ["TaskExecStdioRead", "TaskExecStdinWrite"])
def test_a_refusal_by_modal_breaks_the_stream(server: Server, use: Use, call: str) -> None:
    async def action(stream: ProgramStream) -> bytes:
        with pytest.raises(anyio.BrokenResourceError):
            await (stream.receive() if call == "TaskExecStdioRead" else stream.send(b"x"))
        with pytest.raises(anyio.BrokenResourceError):
            await stream.receive()
        return stream.diagnostics

    server.fault(call, "status", status="RESOURCE_EXHAUSTED", message="too many requests")
    assert use(action, ("cat",)) == b"too many requests"


def test_a_program_starts_over_a_handle_that_another_call_has_closed(
    provider: ModalProvider, sandbox: Sandbox
) -> None:
    async def run() -> bytes:
        box = provider.box(str(sandbox.id))
        handle = await box._handle()
        await handle.detach.aio()  # type: ignore[no-untyped-call]  # the stub lacks the types
        async with await box._run(("echo", "fine")) as stream:
            return await everything(stream)

    assert Operation(run()).result(SECONDS) == b"fine\n"
