"""Connections of the loopback that the agent carries: exact, bounded, and ended on both sides."""

import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute

from sandboxkit.errors import PortError, PortLimitError
from sandboxkit.provider import PortListener
from sandboxkit.providers._agent import ports
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.frames import NEAR
from sandboxkit.providers._agent.ports import PortStream, _opened
from sandboxkit.providers._agent.unix import UnixStream
from sandboxkit.types import SandboxSpec
from tests.agent.conftest import Box
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
        await box.provider.connect(box.id, program.port) as ours,
        await program.accept() as theirs,
    ):
        yield ours, theirs


@asynccontextmanager
async def listening(box: Box) -> AsyncIterator[PortListener]:
    """Yield a listener on a free port, closed at the end."""
    listener = await box.provider.listen(box.id, 0)
    yield listener
    await listener.aclose()


async def everything(stream: ByteStream) -> bytes:
    parts = []
    with anyio.fail_after(60):
        try:
            while True:
                parts.append(await stream.receive())
        except anyio.EndOfStream:
            return b"".join(parts)


async def test_a_receiver_gets_no_more_bytes_than_it_asks_for(box: Box, program: Program) -> None:
    async with pair(box, program) as (ours, theirs):
        await theirs.send(b"abcdef")
        assert [await ours.receive(1), await ours.receive(2), await ours.receive()] == [
            b"a",
            b"bc",
            b"def",
        ]
        data = os.urandom(300_000)
        await theirs.send(data)
        assert isinstance(ours, PortStream)
        frames = ours._stream._frames
        with anyio.fail_after(60):
            while sum(len(frame.payload) for frame in frames) < len(data):
                await anyio.sleep(0.01)
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
        await box.provider.connect(box.id, program.port)


async def filled(stream: ByteStream) -> int:
    """Send until nothing more is taken for a second; return how many bytes were."""
    sent = 0
    while True:
        with anyio.move_on_after(1) as waiting:
            await stream.send(bytes(16384))
            sent += 16384
        if waiting.cancelled_caught:
            return sent


async def test_an_unread_connection_costs_its_window_and_stops_no_call(
    box: Box, program: Program
) -> None:
    async with pair(box, program) as (ours, theirs):
        for end in (theirs, ours):
            assert 65536 <= await filled(end) < NEAR.from_agent + KERNEL_BYTES
            with anyio.fail_after(60):
                assert (await box.exec("echo", "quick")).stdout == b"quick\n"
        assert isinstance(ours, PortStream)
        with anyio.fail_after(60):  # on a busy machine nothing may have been taken for a second
            while sum(len(frame.payload) for frame in ours._stream._frames) != NEAR.from_agent:
                await anyio.sleep(0.01)


async def test_a_reset_by_the_program_breaks_the_stream(box: Box, program: Program) -> None:
    async with pair(box, program) as (ours, theirs):
        raw = theirs.extra(SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await theirs.aclose()
        with anyio.fail_after(60), pytest.raises(anyio.BrokenResourceError):
            await ours.receive()
        with pytest.raises(anyio.BrokenResourceError):
            await ours.send(b"x")


async def test_an_answer_sent_before_a_close_arrives_if_the_question_does_not(
    box: Box, program: Program
) -> None:
    async with pair(box, program) as (ours, theirs):
        await theirs.send(b"too large")
        await theirs.aclose()
        with anyio.fail_after(60), pytest.raises(anyio.BrokenResourceError):
            await ours.send(bytes(32 * MIB))
        assert await everything(ours) == b"too large"


async def test_a_close_resets_the_programs_connection(box: Box, program: Program) -> None:
    async with pair(box, program) as (ours, theirs):
        await ours.aclose()
        with anyio.fail_after(60), pytest.raises(anyio.BrokenResourceError):
            await theirs.receive()
        with pytest.raises(anyio.ClosedResourceError):
            await ours.receive()
        with pytest.raises(anyio.ClosedResourceError):
            await ours.send(b"x")


async def test_a_close_resets_a_connection_whose_program_has_sent_everything(
    box: Box, program: Program
) -> None:
    for _ in range(20):
        async with pair(box, program) as (ours, theirs):
            await theirs.send_eof()
            assert await everything(ours) == b""
            await ours.aclose()
            with anyio.fail_after(60), pytest.raises(anyio.BrokenResourceError):
                await theirs.receive()


async def test_a_close_ends_a_connection_whose_program_reads_nothing(
    box: Box, program: Program
) -> None:
    async with pair(box, program) as (ours, _):
        await filled(ours)
        with anyio.fail_after(60):
            await ours.aclose()


async def test_a_close_waits_until_the_program_has_taken_what_was_sent(
    box: Box, program: Program
) -> None:
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
    stream, port = await _opened(client, 14, program.port)
    assert (stream.number, port) == (1, program.port)
    async with await program.accept() as theirs:
        await client.aclose()
        with anyio.fail_after(60), pytest.raises(anyio.BrokenResourceError):
            await theirs.receive()


async def test_a_connect_that_waits_is_cancelled(box: Box) -> None:
    program = Program(backlog=0)
    async with anyio.create_task_group() as group:

        async def connect() -> None:
            await (await box.provider.connect(box.id, program.port)).aclose()

        streams = []
        with anyio.move_on_after(1) as full:  # the kernel's queue takes some that nobody accepts
            for _ in range(10):
                streams.append(await box.provider.connect(box.id, program.port))
        assert full.cancelled_caught
        group.start_soon(connect)
        with anyio.fail_after(60):
            assert (await box.exec("echo", "quick")).stdout == b"quick\n"
            group.cancel_scope.cancel()
            for stream in streams:
                await stream.aclose()
    program.close()


async def test_more_connections_than_the_limit_are_refused_until_one_ends(
    box: Box, program: Program
) -> None:
    streams: list[ByteStream] = []
    for _ in range(256):
        streams.append(await box.provider.connect(box.id, program.port))
        await (await program.accept()).aclose()
    with pytest.raises(PortLimitError, match="256 connections are open"):
        await box.provider.connect(box.id, program.port)
    await streams.pop().aclose()
    streams.append(await box.provider.connect(box.id, program.port))
    for stream in streams:
        await stream.aclose()


async def test_a_session_has_a_limit_of_connections_that_closed_ones_do_not_count_against(
    box: Box, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "_MOST_CONNECTIONS", 16)  # of which one sandbox has 2
    async with listening(box) as listener, pair(box, program) as (first, _):
        async with pair(box, program):
            with pytest.raises(
                PortLimitError, match="2 connections to this sandbox are open, and 2 of 16"
            ):
                await box.provider.connect(box.id, program.port)
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
                await box.provider.connect(box.id, program.port)


async def all_it_gets(box: Box, sandbox_id: str, program: Program) -> list[ByteStream]:
    held: list[ByteStream] = []
    while True:
        try:
            held.append(await box.provider.connect(sandbox_id, program.port))
        except PortLimitError:
            return held
        await (await program.accept()).aclose()


async def test_sandboxes_that_take_all_they_can_leave_room_for_another(
    box: Box, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "_MOST_CONNECTIONS", 64)
    greedy = [await box.provider.create(SandboxSpec()) for _ in range(3)]
    held: list[ByteStream] = []
    try:
        for sandbox_id in greedy:
            held += await all_it_gets(box, sandbox_id, program)
        listener = await box.provider.listen(greedy[0], 0)
        async with await anyio.connect_tcp("127.0.0.1", listener.port):
            with anyio.move_on_after(1) as waiting:
                await listener.accept()
            assert waiting.cancelled_caught, "from inside it waits"
            async with (
                pair(box, program),
                listening(box) as other,
                await anyio.connect_tcp("127.0.0.1", other.port) as inside,
                await other.accept() as accepted,
            ):
                await inside.send(b"has room")
                assert await accepted.receive() == b"has room"
            await listener.aclose()
    finally:
        for stream in held:
            await stream.aclose()
        for sandbox_id in greedy:
            await box.provider.delete(sandbox_id)


async def test_a_closed_listener_refuses_and_its_waiting_accept_ends(box: Box) -> None:
    async with listening(box) as listener:
        ended = anyio.Event()

        async def accept() -> None:
            with pytest.raises(anyio.ClosedResourceError):
                await listener.accept()
            ended.set()

        async with anyio.create_task_group() as group:
            group.start_soon(accept)
            await anyio.wait_all_tasks_blocked()
            await listener.aclose()
            with anyio.fail_after(60):
                await ended.wait()
        with pytest.raises(OSError, match="attempts failed"):
            await anyio.connect_tcp("127.0.0.1", listener.port)
        await listener.aclose()


@pytest.mark.parametrize("seed", range(3))
async def test_bytes_arrive_once_and_in_order_over_links_that_break(
    box: Box, program: Program, seed: int
) -> None:
    chances = random.Random(seed)
    plan = [(chances.randint(200, 90_000), chances.randint(200, 90_000)) for _ in range(15)]
    way = Breakable(box, plan)
    client: AgentClient = await way.client(grace=60.0)
    stream, _ = await _opened(client, 14, program.port)
    data = os.urandom(MIB)

    async def explain(error: Exception) -> Exception:
        return error

    ours = PortStream(
        stream,
        explain,  # type: ignore[arg-type] # no SPI error is expected
        lambda: None,
    )
    async with await program.accept() as theirs, anyio.create_task_group() as group:

        async def echo() -> None:
            await theirs.send(await everything(theirs))
            await theirs.send_eof()

        group.start_soon(echo)
        await ours.send(data)
        await ours.send_eof()
        assert await everything(ours) == data
    assert way.opened > 10
    await client.aclose()
