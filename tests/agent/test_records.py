"""The records of a link: duplicates are dropped, and what no agent may say ends the session."""

import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio
import pytest

from sandboxkit.providers._agent.failures import ProtocolError
from sandboxkit.providers._agent.frames import PROTOCOL_VERSION
from sandboxkit.providers._agent.link import (
    ACK,
    DATA,
    MAGIC,
    OPENED,
    OPENING,
    OPENING_REPLY,
    RECORD,
    RESUMED,
    Link,
    LostSessionError,
)
from sandboxkit.providers._agent.unix import UnixStream

pytestmark = pytest.mark.anyio


def data(offset: int, payload: bytes) -> bytes:
    return RECORD.pack(DATA, offset, len(payload)) + payload


@dataclass
class Ends:
    """A link, and the agent's end of its connection, which the test plays byte by byte."""

    link: Link
    agent: UnixStream
    next_agent: UnixStream
    """The end of the connection that replaces the first one."""

    async def reply(self, received: int = 0, *, verdict: int = OPENED) -> None:
        await self.agent.send(OPENING_REPLY.pack(MAGIC, PROTOCOL_VERSION, verdict, received))

    async def received(self, size: int) -> bytes:
        """Return the bytes that the link delivers, once there are at least `size`."""
        found = b""
        with anyio.fail_after(30):
            while len(found) < size:
                found += b"".join(await self.link.receive())
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

    link = Link(ours, grace=30, reopen=reopen)
    link.open()
    yield Ends(link, theirs, next_theirs)
    await link.aclose()
    for stream in (theirs, next_ours, next_theirs):
        await stream.aclose()


async def test_what_a_proxy_sends_twice_is_dropped(ends: Ends) -> None:
    await ends.reply()
    for record in (data(0, b"abc"), data(0, b"abc"), data(1, b"bcdef"), data(6, b"g")):
        await ends.agent.send(record)
    assert await ends.received(7) == b"abcdefg"


async def test_a_reply_to_the_opening_that_comes_twice_is_dropped(ends: Ends) -> None:
    await ends.reply()
    await ends.reply()
    await ends.agent.send(data(0, b"abc"))
    assert await ends.received(3) == b"abc"


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (data(4, b"e"), "received byte 4, expected byte 3"),
        (RECORD.pack(ACK, 3, 0), "acknowledged 3 bytes, but only 2 were sent"),
        (RECORD.pack(9, 0, 0), "unknown record type 9"),
    ],
)
async def test_a_record_that_cannot_be_ends_the_session(
    ends: Ends, said: bytes, named: str
) -> None:
    await ends.link.send(b"hi")
    await ends.reply()
    await ends.agent.send(data(0, b"abc"))
    assert await ends.received(3) == b"abc"
    await ends.agent.send(said)
    with pytest.raises(ProtocolError, match=named):
        await ends.received(1)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ((b"HTTP", PROTOCOL_VERSION, OPENED, 0), ProtocolError),
        ((MAGIC, PROTOCOL_VERSION + 1, OPENED, 0), ProtocolError),
        ((MAGIC, PROTOCOL_VERSION, 7, 0), LostSessionError),
    ],
)
async def test_a_reply_that_is_no_agents_is_refused(
    ends: Ends, reply: tuple[object, ...], error: type[Exception]
) -> None:
    await ends.agent.send(OPENING_REPLY.pack(*reply))
    with pytest.raises(error):
        await ends.received(1)


async def test_acknowledged_bytes_make_room_for_more(ends: Ends) -> None:
    """A sender waits while more than 4 MiB are kept for the case that the connection breaks."""
    piece = bytes(1 << 20)
    await ends.reply()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:

            async def agent() -> None:
                await read(ends.agent, OPENING.size)
                for number in range(1, 13):
                    header = await read(ends.agent, RECORD.size)
                    assert RECORD.unpack(header) == (DATA, (number - 1) << 20, 1 << 20)
                    await read(ends.agent, len(piece))
                    await ends.agent.send(RECORD.pack(ACK, number << 20, 0))
                await ends.agent.send(data(0, b"all"))

            group.start_soon(agent)
            group.start_soon(ends.received, 3)
            for _ in range(12):
                await ends.link.send(piece)


async def test_a_new_connection_brings_what_was_not_received_and_no_more(ends: Ends) -> None:
    await ends.link.send(b"0123456789")
    await ends.reply()
    await ends.agent.send(RECORD.pack(ACK, 4, 0) + data(0, b"abc"))
    assert await ends.received(3) == b"abc"
    await ends.agent.aclose()
    await ends.next_agent.send(
        OPENING_REPLY.pack(MAGIC, PROTOCOL_VERSION, RESUMED, 7) + data(3, b"def")
    )
    assert await ends.received(3) == b"def"
    opening = OPENING.unpack(await read(ends.next_agent, OPENING.size))
    assert (opening[3], opening[5]) == (True, 3), "it resumes, and says what it has"
    assert await read(ends.next_agent, RECORD.size + 3) == data(7, b"789")
