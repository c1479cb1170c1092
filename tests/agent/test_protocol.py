"""Frames and records of the link: both ends refuse malformed ones, drop duplicates, and neither hangs."""

import asyncio
import errno
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

import anyio
import pytest
from anyio.abc import SocketAttribute
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit.errors import AgentTooOldError, ConfigurationError
from sandboxkit.providers._agent import frames, link, requests
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.failures import CallError, ConnectionEndedError, ProtocolError
from sandboxkit.providers._agent.frames import PROTOCOL_VERSION, Fields, Frame, FrameDecoder, Kind
from sandboxkit.providers._agent.unix import UnixStream
from sandboxkit.types import Command, CommandInput, CommandSeries
from tests.agent.conftest import Box

pytestmark = pytest.mark.anyio
HELLO = frames.encode(Kind.HELLO, 0, requests.hello(None))

frame_lists = st.lists(
    st.builds(
        Frame,
        st.sampled_from([kind for kind in Kind if kind >= Kind.WELCOME or kind == Kind.CREDIT]),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=300),
    ),
    max_size=8,
)


@given(frame_lists, st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_frames_are_decoded_from_any_split(sent: list[Frame], cuts: list[int]) -> None:
    data = b"".join(frames.encode(*frame) for frame in sent)
    decoder = FrameDecoder()
    received: list[Frame] = []
    while data:
        for cut in cuts:
            received += decoder.feed(data[:cut])
            data = data[cut:]
    assert received == sent


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_raise_a_protocol_error(data: bytes) -> None:
    with suppress(ProtocolError):
        for frame in FrameDecoder().feed(data):
            assert len(frame.payload) <= len(data)
    fields = Fields(data)
    with suppress(ProtocolError):
        while fields:
            fields.text()
            fields.info()


async def last_words(box: Box, data: bytes) -> str:
    """Send bytes over a link as a second client; return the reason of the agent's BYE."""
    reason = ""
    decoder = FrameDecoder()
    async with await box.inner._connect() as stream:
        session = link.Link(stream)
        with anyio.fail_after(60), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            session.open()
            await session.send(data)
            await stream.send_eof()
            while True:
                for frame in decoder.feed(*await session.receive()):
                    if frame.kind == Kind.BYE:
                        reason = Fields(frame.payload).text()
    return reason


def exec_frame(number: int = 1) -> bytes:
    payload = frames.strings(["cat"]) + frames.strings([]) + frames.string("") * 2
    return frames.encode(Kind.EXEC, number, payload + struct.pack(">BHH", 1, 0, 0))


BEGUN = HELLO + exec_frame()
EOF = frames.encode(Kind.EOF, 1)
MALFORMED = {
    "garbage": (b"GET / HTTP/1.1\r\nHost: agent\r\n\r\n", "bytes, the limit"),
    "no hello": (exec_frame(), "hello"),
    "bad magic": (frames.encode(Kind.HELLO, 0, b"XXXX\0\0\0\1\0" + bytes(8)), "magic"),
    "other version": (frames.encode(Kind.HELLO, 0, b"SBXK\0\0\0\1\0" + bytes(8)), "version"),
    "second hello": (BEGUN + frames.encode(Kind.HELLO, 1), "second hello"),
    "unknown type": (HELLO + b"\0\0\0\0\x09\0\0\0\1", "unknown frame type 9"),
    "agent's type": (HELLO + frames.encode(Kind.EXIT, 1, bytes(4)), "unknown frame type 19"),
    "oversized": (HELLO + struct.pack(">IBI", 5 << 20, 2, 1), "limit"),
    "cut short": (BEGUN[:-3], "ended inside a frame"),
    "stream 0": (HELLO + exec_frame(0), "stream 0"),
    "id in use": (BEGUN + exec_frame(), "in use"),
    "empty argv": (HELLO + frames.encode(Kind.EXEC, 1, bytes(16) + bytes(5)), "empty argv"),
    "huge list": (HELLO + frames.encode(Kind.EXEC, 1, b"\xff" * 20), "too short"),
    "left over": (HELLO + frames.encode(Kind.CALL, 1, b"\x09more"), "too many"),
    "above the window": (BEGUN + frames.encode(Kind.DATA, 1, bytes((256 << 10) + 1)), "window"),
    "data after its end": (BEGUN + EOF + frames.encode(Kind.DATA, 1, b"x"), "after end"),
    "too much credit": (BEGUN + frames.encode(Kind.CREDIT, 1, b"\xff" * 4), "credit"),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_the_agent_refuses_malformed_frames_and_continues(box: Box, case: str) -> None:
    data, complaint = MALFORMED[case]
    assert complaint in await last_words(box, data)
    assert (await box.exec("echo", "alive")).stdout == b"alive\n"
    await box.settled()


async def test_the_agent_answers_an_unknown_call_and_its_connection_goes_on(box: Box) -> None:
    client = await box.inner._client()

    async def refused() -> None:
        with pytest.raises(CallError, match="unknown call 99") as error:
            await client.open(Kind.CALL, b"\x63arguments of an unknown form").receive()
        assert error.value.errno == errno.ENOSYS

    async def line() -> AsyncIterator[bytes]:
        await refused()
        yield b"went on\n"

    running = asyncio.create_task(box.exec("sh", "-c", "read line; echo $line", stdin=line()))
    await refused()
    assert (await running).stdout == b"went on\n"
    assert await box.inner._client() is client


async def test_an_agent_that_lacks_a_call_is_named_as_too_old_and_not_asked(box: Box) -> None:
    client = await box.inner._client()
    assert set(client.calls) >= set(range(1, 14))
    series = CommandSeries((CommandInput(), CommandInput()), seconds=1)
    with pytest.raises(ConfigurationError, match="a series needs a sandbox that is reset"):
        await box.inner.exec_each(Command(("true",)), series)
    client.calls = b"\x03"  # an agent that only knows stat
    with pytest.raises(AgentTooOldError, match=r"sandbox 'ns0' .*unknown call 9.*sandboxkit bake"):
        await box.inner.logs()
    with pytest.raises(AgentTooOldError, match="unknown call 20"):
        await box.inner.exec_each(Command(("true",)), series)
    assert (await box.inner.stat("/")).path == "/"


NO_LINK = {
    "another protocol": (b"GET / HTTP/1.1\r\nHost: agent\r\nAccept: */*\r\n\r\n", "not a link's"),
    "the version before": (link.OPENING.pack(link.MAGIC, 1, bytes(16), False, 0, 0), "version 3"),
    "cut short": (b"SBXL\2", "inside its opening"),
}


@pytest.mark.parametrize("case", NO_LINK)
async def test_the_agent_says_why_it_refuses_a_connection(box: Box, case: str) -> None:
    data, complaint = NO_LINK[case]
    async with await box.inner._connect() as stream:
        await stream.send(data)
        await stream.send_eof()
        with anyio.fail_after(60):
            frames_of = FrameDecoder().feed(*await link.Link(stream).receive())
            assert complaint in Fields(next(frames_of).payload).text()


def data(offset: int, payload: bytes) -> bytes:
    return link.RECORD.pack(link.DATA, offset, len(payload)) + payload


OPENED_REPLY = link.OPENING_REPLY.pack(link.MAGIC, PROTOCOL_VERSION, link.OPENED, 0)


def of_the_agent(frames: bytes) -> bytes:
    """What an agent sends at the beginning of a session."""
    return OPENED_REPLY + data(0, frames)


CALLS = frames.string("/") + frames.string(bytes(range(1, 21)))
WELCOME = frames.encode(Kind.WELCOME, 0, b"\0\0\0\3" + bytes(16) + CALLS)


async def connected() -> tuple[AgentClient, UnixStream, socket.socket]:
    """A client, its stream, and the agent's end, which the test plays."""
    ours, agent = socket.socketpair()
    agent.send(of_the_agent(WELCOME))
    stream = UnixStream(ours)
    return await AgentClient.start(stream, requests.hello(None)), stream, agent


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"", "ended"),
        (b"HTTP/1.1 400 Bad Request\r\n", "protocol error"),
        (link.OPENING_REPLY.pack(link.MAGIC, 1, link.OPENED, 0), "version 1"),
        (of_the_agent(frames.encode(Kind.BYE, 0, frames.string("no room"))), "no room"),
        (of_the_agent(struct.pack(">IBI", 5 << 20, 16, 0)), "limit"),
        (of_the_agent(frames.encode(Kind.BYE, 0, b"\0\0\0\x09short")), "too short"),
    ],
)
async def test_a_client_refuses_a_peer_that_is_no_agent(answer: bytes, complaint: str) -> None:
    ours, agent = socket.socketpair()
    agent.send(answer)
    agent.shutdown(socket.SHUT_WR)
    with agent, anyio.fail_after(60), pytest.raises(ConnectionEndedError, match=complaint):
        await AgentClient.start(UnixStream(ours), requests.hello(None))


async def test_a_closed_connection_does_not_deafen_the_next_file_with_its_number() -> None:
    """Descriptors are numbered anew: the loop must have let go of one before it is closed."""
    client, stream, agent = await connected()
    number = stream.extra(SocketAttribute.raw_socket).fileno()
    await anyio.wait_all_tasks_blocked()  # its reader waits for the socket
    loop, received = asyncio.get_running_loop(), anyio.Event()

    async def open_meanwhile() -> tuple[socket.socket, socket.socket]:
        while True:
            one, other = socket.socketpair()
            if one.fileno() == number:
                loop.add_reader(one, received.set)
                return one, other
            one.close()
            other.close()
            await asyncio.sleep(0)

    opening = asyncio.create_task(open_meanwhile())
    await asyncio.sleep(0)
    await client.aclose()
    one, other = await opening
    with agent, one, other, anyio.fail_after(60):
        other.send(b"x")
        await received.wait()
        loop.remove_reader(one)


@dataclass
class Ends:
    """A link, and the agent's end of its connection, which the test plays byte by byte."""

    session: link.Link
    agent: UnixStream
    next_agent: UnixStream
    """The end of the connection that replaces the first one."""

    async def received(self, size: int) -> bytes:
        """Return the bytes that the link delivers, once there are at least `size`."""
        found = b""
        with anyio.fail_after(30):
            while len(found) < size:
                found += b"".join(await self.session.receive())
        return found


async def read(stream: UnixStream, size: int) -> bytes:
    found = b""
    with anyio.fail_after(30):
        while len(found) < size:
            found += await stream.receive(size - len(found))
    return found


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    pairs = [socket.socketpair() for _ in range(2)]
    (ours, theirs), (next_ours, next_theirs) = [
        (UnixStream(one), UnixStream(other)) for one, other in pairs
    ]

    async def reopen() -> UnixStream:
        return next_ours

    session = link.Link(ours, grace=30, reopen=reopen)
    session.open()
    yield Ends(session, theirs, next_theirs)
    await session.aclose()
    for stream in (theirs, next_ours, next_theirs):
        await stream.aclose()


async def test_what_a_proxy_sends_twice_is_dropped(ends: Ends) -> None:
    records = (data(0, b"abc"), data(0, b"abc"), OPENED_REPLY, data(1, b"bcdef"), data(6, b"g"))
    for byte in b"".join((OPENED_REPLY, OPENED_REPLY, *records)):  # whatever the pieces are
        await ends.agent.send(bytes([byte]))
    assert await ends.received(7) == b"abcdefg"


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (data(4, b"e"), "received byte 4, expected byte 3"),
        (link.RECORD.pack(link.ACK, 3, 0), "acknowledged 3 bytes, but only 2 were sent"),
        (link.RECORD.pack(9, 0, 0), "unknown record type 9"),
        (link.RECORD.pack(link.DATA, 3, 0), "a record of no data"),
    ],
)
async def test_an_impossible_record_ends_the_session(ends: Ends, said: bytes, named: str) -> None:
    await ends.session.send(b"hi")
    await ends.agent.send(OPENED_REPLY)
    await ends.agent.send(data(0, b"abc"))
    assert await ends.received(3) == b"abc"
    await ends.agent.send(said)
    with pytest.raises(ProtocolError, match=named):
        await ends.received(1)


async def test_a_reply_with_an_unknown_verdict_has_lost_the_session(ends: Ends) -> None:
    await ends.agent.send(link.OPENING_REPLY.pack(link.MAGIC, PROTOCOL_VERSION, 7, 0))
    with pytest.raises(link.LostSessionError):
        await ends.received(1)


async def test_acknowledged_bytes_make_room_for_more(ends: Ends) -> None:
    """A sender waits while more than 4 MiB are kept for the case that the connection breaks."""
    piece = bytes(1 << 20)
    await ends.agent.send(OPENED_REPLY)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:

            async def agent() -> None:
                await read(ends.agent, link.OPENING.size)
                for number in range(1, 13):
                    header = await read(ends.agent, link.RECORD.size)
                    assert link.RECORD.unpack(header) == (link.DATA, (number - 1) << 20, 1 << 20)
                    await read(ends.agent, len(piece))
                    await ends.agent.send(link.RECORD.pack(link.ACK, number << 20, 0))
                await ends.agent.send(data(0, b"all"))

            group.start_soon(agent)
            group.start_soon(ends.received, 3)
            for _ in range(12):
                await ends.session.send(piece)


async def test_a_new_connection_brings_what_was_not_received_and_no_more(ends: Ends) -> None:
    await ends.session.send(b"0123456789")
    await ends.agent.send(OPENED_REPLY)
    await ends.agent.send(link.RECORD.pack(link.ACK, 4, 0) + data(0, b"abc"))
    assert await ends.received(3) == b"abc"
    await ends.agent.aclose()
    resumed = link.OPENING_REPLY.pack(link.MAGIC, PROTOCOL_VERSION, link.RESUMED, 7)
    await ends.next_agent.send(resumed + data(3, b"def"))
    assert await ends.received(3) == b"def"
    opening = link.OPENING.unpack(await read(ends.next_agent, link.OPENING.size))
    assert (opening[3], opening[5]) == (True, 3), "it resumes, and says what it has"
    assert await read(ends.next_agent, link.RECORD.size + 3) == data(7, b"789")
