"""Malformed frames: both ends refuse them with a clear error, and neither hangs."""

import asyncio
import errno
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxkit.errors import AgentTooOldError, ConfigurationError
from sandboxkit.providers._agent import frames, requests
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.failures import CallError, ConnectionEndedError, ProtocolError
from sandboxkit.providers._agent.frames import (
    PROTOCOL_VERSION,
    Fields,
    Frame,
    FrameDecoder,
    Kind,
)
from sandboxkit.providers._agent.link import (
    DATA,
    MAGIC,
    OPENED,
    OPENING,
    OPENING_REPLY,
    RECORD,
    Link,
)
from sandboxkit.providers._agent.unix import UnixStream
from sandboxkit.types import Command, CommandInput, CommandSeries
from tests.agent.conftest import Box

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
def test_frames_are_decoded_from_any_split_of_the_stream(
    sent: list[Frame], cuts: list[int]
) -> None:
    data = b"".join(frames.encode(*frame) for frame in sent)
    decoder = FrameDecoder()
    received: list[Frame] = []
    while data:
        for cut in cuts:
            received += decoder.feed(data[:cut])
            data = data[cut:]
    assert received == sent


@given(st.binary(max_size=200))
def test_the_decoder_yields_frames_or_a_protocol_error(data: bytes) -> None:
    with suppress(ProtocolError):
        for frame in FrameDecoder().feed(data):
            assert len(frame.payload) <= len(data)


@given(st.binary(max_size=50))
def test_fields_are_decoded_or_raise_a_protocol_error(payload: bytes) -> None:
    fields = Fields(payload)
    with suppress(ProtocolError):
        while fields:
            fields.text()
            fields.info()


@given(st.text(max_size=20), st.lists(st.text(max_size=5), max_size=5))
def test_text_is_encoded_and_decoded_unchanged(text: str, several: list[str]) -> None:
    with suppress(UnicodeEncodeError):
        fields = Fields(frames.string(text) + frames.strings(several))
        assert fields.text() == text
        assert [fields.text() for _ in range(fields.u32())] == several


async def last_words(box: Box, data: bytes) -> str:
    """Send bytes over a link as a second client; return the reason of the agent's BYE."""
    reason = ""
    decoder = FrameDecoder()
    async with await box.provider._connect(box.id) as stream:
        link = Link(stream)
        with anyio.fail_after(60), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            link.open()
            await link.send(data)
            if isinstance(stream, UnixStream):
                await stream.send_eof()
            while True:
                for frame in decoder.feed(*await link.receive()):
                    if frame.kind == Kind.BYE:
                        reason = Fields(frame.payload).text()
    return reason


def exec_frame(number: int = 1) -> bytes:
    payload = frames.strings(["cat"]) + frames.strings([]) + frames.string("") * 2
    return frames.encode(Kind.EXEC, number, payload + struct.pack(">BHH", 1, 0, 0))


MALFORMED = {
    "garbage": (b"GET / HTTP/1.1\r\nHost: agent\r\n\r\n", "bytes, the limit"),
    "no hello": (exec_frame(), "hello"),
    "bad magic": (frames.encode(Kind.HELLO, 0, b"XXXX\0\0\0\1\0" + bytes(8)), "magic"),
    "other version": (frames.encode(Kind.HELLO, 0, b"SBXK\0\0\0\1\0" + bytes(8)), "version"),
    "second hello": (HELLO + exec_frame() + frames.encode(Kind.HELLO, 1), "second hello"),
    "unknown type": (HELLO + b"\0\0\0\0\x09\0\0\0\1", "unknown frame type 9"),
    "agent's type": (HELLO + frames.encode(Kind.EXIT, 1, bytes(4)), "unknown frame type 19"),
    "oversized": (HELLO + struct.pack(">IBI", 5 << 20, 2, 1), "limit"),
    "cut short": (HELLO + exec_frame()[:-3], "ended inside a frame"),
    "stream 0": (HELLO + exec_frame(0), "stream 0"),
    "id in use": (HELLO + exec_frame() + exec_frame(), "in use"),
    "empty argv": (HELLO + frames.encode(Kind.EXEC, 1, bytes(16) + bytes(5)), "empty argv"),
    "huge list": (HELLO + frames.encode(Kind.EXEC, 1, b"\xff" * 20), "too short"),
    "left over": (HELLO + frames.encode(Kind.CALL, 1, b"\x09more"), "too many"),
    "above the window": (
        HELLO + exec_frame() + frames.encode(Kind.DATA, 1, bytes((256 << 10) + 1)),
        "window",
    ),
    "data after its end": (
        HELLO + exec_frame() + frames.encode(Kind.EOF, 1) + frames.encode(Kind.DATA, 1, b"x"),
        "after end",
    ),
    "too much credit": (
        HELLO + exec_frame() + frames.encode(Kind.CREDIT, 1, b"\xff" * 4),
        "credit",
    ),
}


@pytest.mark.anyio
@pytest.mark.parametrize("case", MALFORMED)
async def test_the_agent_refuses_malformed_frames_and_continues(box: Box, case: str) -> None:
    data, complaint = MALFORMED[case]
    assert complaint in await last_words(box, data)
    assert (await box.exec("echo", "alive")).stdout == b"alive\n"
    await box.settled()


@pytest.mark.anyio
async def test_an_agent_that_lists_no_calls_knows_the_first_thirteen() -> None:
    stream, agent = await connected()
    agent.send(of_the_agent(WELCOME))
    client = await AgentClient.start(stream, requests.hello(None))
    assert client.calls == bytes(range(1, 14))
    await client.aclose()
    agent.close()


@pytest.mark.anyio
async def test_the_agent_survives_random_frames(box: Box) -> None:
    examples = st.lists(
        st.builds(
            lambda kind, stream, payload: frames.encode(kind, stream, payload),
            st.sampled_from([Kind.DATA, Kind.EOF, Kind.CREDIT, Kind.RESIZE, Kind.KILL, Kind.EXEC]),
            st.integers(0, 2),
            st.binary(max_size=40),
        )
        | st.just(exec_frame())
        | st.binary(max_size=40),
        max_size=6,
    )
    cases: list[bytes] = []

    @settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], database=None)
    @given(examples)
    def collect(parts: list[bytes]) -> None:
        cases.append(b"".join(parts))

    collect()
    for data in cases:
        await last_words(box, HELLO + data)
    assert (await box.exec("echo", "alive")).stdout == b"alive\n"
    with anyio.fail_after(60):
        while await box.processes():
            await anyio.sleep(0.01)


SERIES = CommandSeries((CommandInput(), CommandInput()), seconds=1)
UNKNOWN = b"\x63arguments of an unknown form"


@pytest.mark.anyio
async def test_the_agent_answers_an_unknown_call_and_its_connection_goes_on(box: Box) -> None:
    client = await box.provider._client(box.id)
    running = asyncio.create_task(box.exec("sh", "-c", "read line; echo $line", stdin=line(box)))
    with pytest.raises(CallError, match="unknown call 99") as refused:
        await client.open(Kind.CALL, UNKNOWN).receive()
    assert refused.value.errno == errno.ENOSYS
    assert (await running).stdout == b"went on\n"
    assert await box.provider._client(box.id) is client


async def line(box: Box) -> AsyncIterator[bytes]:
    """Input for a command, sent only after the agent answered another unknown call."""
    with pytest.raises(CallError):
        await (await box.provider._client(box.id)).open(Kind.CALL, UNKNOWN).receive()
    yield b"went on\n"


@pytest.mark.anyio
async def test_an_agent_that_lacks_a_call_is_named_as_too_old_and_not_asked(box: Box) -> None:
    client = await box.provider._client(box.id)
    assert set(client.calls) >= set(range(1, 14))
    client.calls = b"\x03"  # an agent that only knows stat
    with pytest.raises(AgentTooOldError, match=r"sandbox 'ns0' .*unknown call 9.*sandboxkit bake"):
        await box.provider.logs(box.id)
    with pytest.raises(AgentTooOldError, match="unknown call 20"):
        await box.provider.exec_each(box.id, Command(("true",)), SERIES)
    assert (await box.provider.stat(box.id, "/")).path == "/"


@pytest.mark.anyio
async def test_a_series_needs_an_agent_whose_sandbox_was_reset(box: Box) -> None:
    with pytest.raises(ConfigurationError, match="a series needs a sandbox that is reset"):
        await box.provider.exec_each(box.id, Command(("true",)), SERIES)


async def unlinked(box: Box, data: bytes) -> str:
    """Send bytes that are no link's; return the reason of the agent's BYE."""
    async with await box.provider._connect(box.id) as stream:
        await stream.send(data)
        if isinstance(stream, UnixStream):
            await stream.send_eof()
        with anyio.fail_after(60):
            frames_of = FrameDecoder().feed(*await Link(stream).receive())
            return Fields(next(frames_of).payload).text()


NO_LINK = {
    "another protocol": (b"GET / HTTP/1.1\r\nHost: agent\r\nAccept: */*\r\n\r\n", "not a link's"),
    "the version before": (OPENING.pack(MAGIC, 1, bytes(16), False, 0, 0), "version 3"),
    "cut short": (b"SBXL\2", "inside its opening"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("case", NO_LINK)
async def test_the_agent_says_why_it_refuses_a_connection(box: Box, case: str) -> None:
    data, complaint = NO_LINK[case]
    assert complaint in await unlinked(box, data)


def of_the_agent(data: bytes) -> bytes:
    """What an agent sends at the beginning of a session."""
    return (
        OPENING_REPLY.pack(MAGIC, PROTOCOL_VERSION, OPENED, 0)
        + RECORD.pack(DATA, 0, len(data))
        + data
    )


WELCOME = frames.encode(Kind.WELCOME, 0, b"\0\0\0\3" + bytes(16) + b"\0\0\0\1/")


async def connected() -> tuple[ByteStream, socket.socket]:
    ours, theirs = socket.socketpair()
    return UnixStream(ours), theirs


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"", "ended"),
        (b"HTTP/1.1 400 Bad Request\r\n", "protocol error"),
        (OPENING_REPLY.pack(MAGIC, 1, OPENED, 0), "version 1"),
        (
            OPENING_REPLY.pack(MAGIC, PROTOCOL_VERSION, OPENED, 0) + RECORD.pack(DATA, 7, 1) + b"x",
            "byte 7",
        ),
        (
            OPENING_REPLY.pack(MAGIC, PROTOCOL_VERSION, OPENED, 0) + RECORD.pack(9, 0, 0),
            "record type 9",
        ),
        (of_the_agent(frames.encode(Kind.BYE, 0, frames.string("no room"))), "no room"),
        (of_the_agent(struct.pack(">IBI", 5 << 20, 16, 0)), "limit"),
        (of_the_agent(frames.encode(Kind.BYE, 0, b"\0\0\0\x09short")), "too short"),
    ],
)
async def test_the_client_refuses_a_peer_that_is_not_an_agent(
    answer: bytes, complaint: str
) -> None:
    stream, agent = await connected()
    agent.send(answer)
    agent.shutdown(socket.SHUT_WR)
    with agent, anyio.fail_after(60), pytest.raises(ConnectionEndedError, match=complaint):
        await AgentClient.start(stream, requests.hello(None))


@pytest.mark.anyio
async def test_repeated_bytes_are_skipped() -> None:
    stream, agent = await connected()
    answer = OPENING_REPLY.pack(MAGIC, PROTOCOL_VERSION, OPENED, 0)
    half = RECORD.pack(DATA, 0, 9) + WELCOME[:9]
    rest = RECORD.pack(DATA, 4, len(WELCOME) - 4) + WELCOME[4:]
    with agent:
        for part in (answer, answer, half, half, answer, rest, half, rest):
            for at in range(len(part)):  # whatever the pieces are in which they come
                agent.send(part[at : at + 1])
        client = await AgentClient.start(stream, requests.hello(None))
        request = client.open(Kind.CALL, b"\x09")
        done = frames.encode(Kind.DONE, request.number, b"said")
        agent.send((RECORD.pack(DATA, len(WELCOME), len(done)) + done) * 2)
        with anyio.fail_after(60):
            assert (await request.receive()).payload == b"said"
        assert client.ended is None
        await client.aclose()


@pytest.mark.anyio
async def test_an_agent_that_breaks_the_protocol_ends_requests_in_flight() -> None:
    stream, agent = await connected()
    agent.send(of_the_agent(WELCOME))
    client = await AgentClient.start(stream, requests.hello(None))
    request = client.open(Kind.CALL, b"\x09")
    broken = frames.encode(Kind.CREDIT, request.number, b"")
    agent.send(RECORD.pack(DATA, len(WELCOME), len(broken)) + broken)
    with agent, anyio.fail_after(60), pytest.raises(ConnectionEndedError, match="protocol error"):
        await request.receive()


@pytest.mark.anyio
async def test_a_closed_connection_does_not_deafen_the_next_file_with_its_number() -> None:
    """Descriptors are numbered anew: the loop must have let go of one before it is closed."""
    stream, agent = await connected()
    agent.send(of_the_agent(WELCOME))
    client = await AgentClient.start(stream, requests.hello(None))
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
