"""Tests of each hosted vendor: the byte stream of one program is exact, bounded, or broken."""

import hashlib
import os
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeVar

import anyio
import pytest

from sandboxkit import Operation, Sandbox, SandboxNotFoundError
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers._hosted.vendor import VendorProvider
from tests.hosted.vendor import Vendor

T = TypeVar("T")

ALL_BYTES = bytes(range(256))
ECHO = ("sh", "-c", "echo begun; exec cat")
SECONDS = 90.0

Use = Callable[[Callable[[ProgramStream], Awaitable[Any]], tuple[str, ...]], Any]
"""Any: what the action returns, as each test knows it."""


async def everything(stream: ProgramStream) -> bytes:
    received = b""
    while True:
        try:
            received += await stream.receive()
        except anyio.EndOfStream:
            return received


async def exactly(stream: ProgramStream, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        received += await stream.receive()
    return bytes(received)


async def echoed(stream: ProgramStream, data: bytes) -> None:
    """It gives back what it takes, at the same time."""
    received = b""
    async with anyio.create_task_group() as group:
        group.start_soon(stream.send, data)
        received = await exactly(stream, len(data))
    assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()


class StreamsConformance:
    """A program's input and output through the vendor's calls."""

    vendor: ClassVar[Vendor]

    def test_every_byte_value_and_eight_megabytes_pass_both_ways_at_once(
        self, use: Use, stream: str
    ) -> None:
        async def action(program: ProgramStream) -> None:
            assert await exactly(program, 6) == b"begun\n"
            await echoed(program, ALL_BYTES * 3 + b"\x1e" + ALL_BYTES[::-1])
            for byte in ALL_BYTES:  # alone, too, and at once
                await program.send(bytes([byte]))
                assert await exactly(program, 1) == bytes([byte])
            await echoed(program, os.urandom(8 << 20))

        use(action, ECHO)

    def test_arguments_reach_the_program_unchanged(self, use: Use) -> None:
        argv = ("", "a  b", "it's", '"$HOME"', "new\nline", "\\036", "!!", "é", "*")
        output = "|".join([*argv, ""]).encode()
        assert use(everything, ("printf", "%s|", *argv)) == output

    def test_a_receive_that_is_cancelled_loses_nothing(self, use: Use) -> None:
        async def action(program: ProgramStream) -> bytes:
            received = bytearray()
            while len(received) < 6 * 200:
                with anyio.move_on_after(0.003):
                    while True:
                        received += await program.receive()
            return bytes(received)

        script = "i=0; while [ $i -lt 200 ]; do printf '%05d\\n' $i; i=$((i+1)); done; cat"
        output = b"".join(b"%05d\n" % number for number in range(200))
        assert use(action, ("sh", "-c", script)) == output

    def test_the_end_follows_all_output_and_stderr_is_kept_apart_and_bounded(
        self, use: Use
    ) -> None:
        async def action(program: ProgramStream) -> bytes:
            assert await everything(program) == bytes(300_000) + b"last"
            with pytest.raises(anyio.EndOfStream):
                await program.receive()
            with pytest.raises((anyio.BrokenResourceError, anyio.ClosedResourceError)):
                await program.send(b"more")
            return program.diagnostics

        script = "head -c 300000 /dev/zero; seq 10000 >&2; printf last; exit 3"
        text = use(action, ("sh", "-c", script))
        assert text.strip().endswith(b"\n9999\n10000")
        assert 1900 < len(text) <= 2000

    @pytest.mark.parametrize("argv", [("/no/such/program",), ("no-such-program", "a b")])
    def test_a_missing_program_ends_and_says_why(self, use: Use, argv: tuple[str, ...]) -> None:
        async def action(program: ProgramStream) -> tuple[bytes, bytes]:
            return await everything(program), program.diagnostics

        output, text = use(action, argv)
        assert output == b""
        assert b"not found" in text or argv[0].encode() in text

    def test_closing_wakes_receivers_and_a_sender_that_nobody_reads(self, use: Use) -> None:
        woken: list[str] = []

        async def action(program: ProgramStream) -> None:
            async def receiving() -> None:
                with pytest.raises(anyio.ClosedResourceError):
                    await program.receive()
                woken.append("receiver")

            async def sending() -> None:
                with pytest.raises(anyio.ClosedResourceError):
                    await program.send(bytes(256 << 20))
                woken.append("sender")

            async with anyio.create_task_group() as group:
                group.start_soon(receiving)
                group.start_soon(sending)
                await anyio.sleep(1)
                assert woken == []
                with anyio.fail_after(30):
                    await anyio.aclose_forcefully(program)
            await program.aclose()
            for call in (program.receive, lambda: program.send(b"x")):
                with pytest.raises(anyio.ClosedResourceError):
                    await call()

        use(action, ("sleep", "1000"))
        assert sorted(woken) == ["receiver", "sender"]

    def test_a_sandbox_that_has_ended_is_not_found(
        self, server: Any, provider: VendorProvider[Any, Any], sandbox: Sandbox, stream: str
    ) -> None:
        server.kill_sandboxes()
        with pytest.raises(SandboxNotFoundError):
            Operation(self.vendor.run(provider, sandbox, ("true",), stream)).result(SECONDS)
