"""Connections of the loopback that the agent carries: exact, bounded, and ended on both sides."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute

from sandboxkit.errors import PortError, PortLimitError
from sandboxkit.provider import PortListener
from sandboxkit.providers._agent.frames import NEAR
from sandboxkit.providers._agent.ports import PortStream, opened
from sandboxkit.providers._agent.unix import UnixStream
from tests.agent.conftest import Box, until
from tests.agent.test_link import Breakable
from tests.components import lack, reason

pytestmark = pytest.mark.anyio

MIB = 1 << 20
KERNEL_BYTES = 16 * MIB
"""The most that the kernel's buffers of one connection hold: 4 MiB to send and 6 MiB received, at
Linux's defaults."""


class Program:
    """A server in place of a program of the sandbox: the agent shares the test's network namespace."""

    def __init__(self, backlog: int = 128, address: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), backlog=backlog, family=family)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]

    async def accept(self) -> UnixStream:
        await anyio.wait_readable(self._listener)
        taken, _ = self._listener.accept()
        return UnixStream(taken)  # it reads from the kernel only while it receives

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
async def program(anyio_backend: str) -> AsyncIterator[Program]:
    program = Program()
    yield program
    program.close()


@asynccontextmanager
async def pair(box: Box, program: Program) -> AsyncIterator[tuple[ByteStream, UnixStream]]:
    """Yield both ends of one carried connection: the client's and the program's."""
    async with (
        await box.inner.connect(program.port) as ours,
        await program.accept() as theirs,
    ):
        yield ours, theirs


@asynccontextmanager
async def listening(box: Box) -> AsyncIterator[PortListener]:
    """Yield a listener on a free port, closed at the end."""
    listener = await box.inner.listen(0)
    yield listener
    await listener.aclose()


async def everything(stream: ByteStream) -> bytes:
    with anyio.fail_after(60):
        return b"".join([part async for part in stream])


async def test_a_receiver_gets_no_more_bytes_than_it_asks_for(box: Box, program: Program) -> None:
    async with pair(box, program) as (ours, theirs):
        await theirs.send(b"abcdef")
        received = [await ours.receive(1), await ours.receive(2), await ours.receive()]
        assert received == [b"a", b"bc", b"def"]
        data = os.urandom(300_000)
        await theirs.send(data)
        assert isinstance(ours, PortStream)
        frames = ours._stream._frames
        await until(lambda: sum(len(frame.payload) for frame in frames) == len(data))
        queued, parts = len(frames), []
        while frames or ours._rest:
            parts.append(await ours.receive(150_000))
        assert b"".join(parts) == data
        assert len(parts) < queued, "frames that have arrived are received together"
        assert max(map(len, parts)) <= 150_000


async def test_a_server_that_listens_on_ipv6_alone_is_reached(box: Box) -> None:
    try:
        program = Program(address="::1")
    except OSError as error:
        lack(reason("::1", "enable IPv6", str(error)))
    async with pair(box, program) as (ours, theirs):
        await ours.send(b"question")
        await theirs.send(b"answer")
        assert (await theirs.receive(), await ours.receive()) == (b"question", b"answer")
    program.close()
    with pytest.raises(PortError, match=f"port {program.port}: connection refused"):
        await box.inner.connect(program.port)


async def filled(stream: ByteStream) -> int:
    """Send until nothing more is taken for a second; return how many bytes were."""
    sent = 0
    while True:
        with anyio.move_on_after(1) as waiting:
            await stream.send(bytes(16384))
            sent += 16384
        if waiting.cancelled_caught:
            return sent


async def test_an_unread_connection_costs_its_window_alone(box: Box, program: Program) -> None:
    async with pair(box, program) as (ours, theirs):
        for end in (theirs, ours):
            assert 65536 <= await filled(end) < NEAR.from_agent + KERNEL_BYTES
            with anyio.fail_after(60):
                assert (await box.exec("echo", "quick")).stdout == b"quick\n"
        assert isinstance(ours, PortStream)
        frames = ours._stream._frames  # on a busy machine nothing may have been taken for a second
        await until(lambda: sum(len(frame.payload) for frame in frames) == NEAR.from_agent)
        with anyio.fail_after(60):
            await ours.aclose()  # though the program reads nothing


async def test_a_reset_by_the_program_breaks_the_stream(box: Box, program: Program) -> None:
    async with pair(box, program) as (ours, theirs):
        raw = theirs.extra(SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await theirs.aclose()
        with anyio.fail_after(60), pytest.raises(anyio.BrokenResourceError):
            await ours.receive()
        with pytest.raises(anyio.BrokenResourceError):
            await ours.send(b"x")


async def test_an_answer_before_a_close_arrives(box: Box, program: Program) -> None:
    async with pair(box, program) as (ours, theirs):
        await theirs.send(b"too large")
        await theirs.aclose()
        with anyio.fail_after(60), pytest.raises(anyio.BrokenResourceError):
            await ours.send(bytes(32 * MIB))
        assert await everything(ours) == b"too large"


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_close_resets_the_connection_inside(
    box: Box, program: Program, has_ended: bool
) -> None:
    for _ in range(20):
        async with pair(box, program) as (ours, theirs):
            if has_ended:
                await theirs.send_eof()
                assert await everything(ours) == b""
            await ours.aclose()
            with anyio.fail_after(60), pytest.raises(anyio.BrokenResourceError):
                await theirs.receive()
            for call in (ours.receive(), ours.send(b"x")):
                with pytest.raises(anyio.ClosedResourceError):
                    await call


async def test_a_close_waits_until_the_program_has_all_data(box: Box, program: Program) -> None:
    data = os.urandom(20 * MIB)
    async with pair(box, program) as (ours, theirs), anyio.create_task_group() as group:
        await theirs.send_eof()
        assert await everything(ours) == b""

        async def send() -> None:
            await ours.send(data)
            await ours.send_eof()
            await ours.aclose()

        group.start_soon(send)
        assert await everything(theirs) == data


async def test_the_end_of_a_client_resets_its_connections(box: Box, program: Program) -> None:
    client = await Breakable(box, []).client(grace=0.0)
    stream, port = await opened(client, 14, program.port)
    assert (stream.number, port) == (1, program.port)
    async with await program.accept() as theirs:
        await client.aclose()
        with anyio.fail_after(60), pytest.raises(anyio.BrokenResourceError):
            await theirs.receive()


async def test_a_connect_that_waits_is_cancelled(box: Box) -> None:
    program, streams = Program(backlog=0), []
    with anyio.move_on_after(1) as full:  # the kernel's queue takes some that nobody accepts
        for _ in range(10):
            streams.append(await box.inner.connect(program.port))
    assert full.cancelled_caught
    with anyio.fail_after(60):
        assert (await box.exec("echo", "quick")).stdout == b"quick\n"
        for stream in streams:
            await stream.aclose()
    program.close()


async def test_connections_over_the_limit_are_refused(box: Box, program: Program) -> None:
    streams: list[ByteStream] = []
    for _ in range(256):
        streams.append(await box.inner.connect(program.port))
        await (await program.accept()).aclose()
    with pytest.raises(PortLimitError, match="256 connections are open"):
        await box.inner.connect(program.port)
    await streams.pop().aclose()
    streams.append(await box.inner.connect(program.port))
    for stream in streams:
        await stream.aclose()


async def test_a_session_has_a_limit_of_connections_that_closed_ones_do_not_count_against(
    box: Box, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sandboxkit.providers._agent.box.MOST_CONNECTIONS", 17
    )  # of which one sandbox has 2
    async with listening(box) as listener, pair(box, program) as (first, _):
        async with pair(box, program):
            with pytest.raises(PortLimitError, match=r"2 connections to this .* open, and 2 of 17"):
                await box.inner.connect(program.port)
            async with await anyio.connect_tcp("127.0.0.1", listener.port) as inside:
                await inside.send(b"waits")
                with anyio.move_on_after(1) as waiting:
                    await listener.accept()
                assert waiting.cancelled_caught
        async with (
            await anyio.connect_tcp("127.0.0.1", listener.port) as inside,
            await listener.accept() as accepted,
        ):
            await inside.send(b"has room")
            assert await accepted.receive() == b"has room"
        await first.aclose()
        await first.aclose()
        async with pair(box, program), pair(box, program):
            with pytest.raises(PortLimitError):
                await box.inner.connect(program.port)


async def test_a_closed_listener_refuses_and_its_waiting_accept_ends(box: Box) -> None:
    async with listening(box) as listener:
        accepting = asyncio.create_task(listener.accept())
        await anyio.wait_all_tasks_blocked()
        await listener.aclose()
        with anyio.fail_after(60), pytest.raises(anyio.ClosedResourceError):
            await accepting
        with pytest.raises(OSError, match="attempts failed"):
            await anyio.connect_tcp("127.0.0.1", listener.port)
        await listener.aclose()
