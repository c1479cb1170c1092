"""The owner holds an agent to its promises: what is more, or another thing, ends that connection and nothing else."""

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass

import anyio
import pytest

from sandboxkit.errors import SandboxPausedError, SandboxTerminatedError
from sandboxkit.providers._agent import client as connection
from sandboxkit.providers._agent import frames, link, requests
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.failures import ConnectionEndedError, SilentError
from sandboxkit.providers._agent.frames import NEAR, PROTOCOL_VERSION, Fields, Kind
from sandboxkit.providers._agent.unix import UnixStream
from sandboxkit.types import Command
from tests.agent.conftest import PROGRAMS, Box
from tests.agent.test_protocol import WELCOME, connected, data, of_the_agent

pytestmark = pytest.mark.anyio


@dataclass
class Agent:
    """The agent's end of a connection, which the test plays, and the owner's client."""

    stream: UnixStream
    client: AgentClient
    sent: int = len(WELCOME)

    async def say(self, *said: tuple[Kind, int, bytes]) -> None:
        """Send frames of (type, stream, payload) in one record."""
        sent = b"".join(frames.encode(*each) for each in said)
        await self.stream.send(data(self.sent, sent))
        self.sent += len(sent)


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    client, _, theirs = await connected()
    agent = Agent(UnixStream(theirs), client)
    yield agent
    await client.aclose()
    await agent.stream.aclose()


def execute(client: AgentClient) -> Coroutine[object, object, object]:
    return requests.execute(client, Command(("true",)), lambda *_: anyio.sleep(0))


WINDOW = bytes(NEAR.from_agent)
EXIT = struct.pack(">IBQQQI", 0, 0, 0, 0, 0, 0)


REQUESTS: dict[str, Callable[[AgentClient], Coroutine[object, object, object]]] = {
    "stats": requests.stats,
    "stat": lambda client: requests.stat(client, "/"),
    "read 3 bytes": lambda client: requests.read_file(client, "/x", 3),
    "execute": execute,
}


@pytest.mark.parametrize(
    ("request_of", "kind", "stream", "payload"), PROGRAMS["not_allowed"], ids=repr
)
async def test_what_a_request_does_not_allow_is_an_error_of_the_connection(
    agent: Agent, request_of: str, kind: str, stream: int, payload: str
) -> None:
    asked = asyncio.create_task(REQUESTS[request_of](agent.client))
    await anyio.wait_all_tasks_blocked()
    await agent.say((Kind[kind], stream, payload.encode("latin-1")))
    with anyio.fail_after(30), pytest.raises(ConnectionEndedError, match="protocol error"):
        await asked


async def test_an_answer_that_breaks_the_protocol_is_its_sandboxs_error(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fields, "info", lambda self: self.fixed(1 << 20))
    with pytest.raises(SandboxTerminatedError, match="protocol error") as raised:
        await box.inner.stat("/")
    assert not raised.value.by_command


async def test_data_above_the_window_ends_the_connection(agent: Agent) -> None:
    stream = agent.client.open(Kind.EXEC, b"")
    await agent.say((Kind.STDOUT, stream.number, WINDOW))
    await anyio.wait_all_tasks_blocked()
    assert agent.client.ended is None
    await agent.say((Kind.STDERR, stream.number, b"x"))
    assert (await stream.receive()).payload == WINDOW
    with anyio.fail_after(30), pytest.raises(ConnectionEndedError, match="more data"):
        await stream.receive()


async def test_small_frames_that_nobody_reads_are_joined_in_order(agent: Agent) -> None:
    stream = agent.client.open(Kind.EXEC, b"")
    text = [b"%d\n" % number for number in range(20_000)]
    for at in range(0, len(text), 5_000):
        await agent.say(*((Kind.STDOUT, stream.number, each) for each in text[at : at + 5_000]))
        await anyio.wait_all_tasks_blocked()
    assert len(stream._frames) < 5_000
    await agent.say((Kind.EXIT, stream.number, EXIT))
    found = b""
    with anyio.fail_after(30):
        while (frame := await stream.receive()).kind != Kind.EXIT:
            found += frame.payload
    assert found == b"".join(text)


async def test_a_flood_leaves_the_loop_to_others(agent: Agent) -> None:
    """Some acknowledgements that say nothing new are no error, but other tasks run between them; more end it."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(others())
    flood = link.RECORD.pack(link.ACK, 0, 0) * link._MOST_REPEATED
    await agent.stream.send(flood)
    asked = asyncio.create_task(execute(agent.client))
    await anyio.sleep(0)
    await agent.say((Kind.EXIT, 1, EXIT))
    with anyio.fail_after(30):
        await asked
    beside.cancel()
    assert turns > link._MOST_REPEATED // link._RECORDS_IN_A_ROW
    await agent.stream.send(flood + link.RECORD.pack(link.ACK, 0, 0))
    with pytest.raises(ConnectionEndedError, match="bring nothing new"):
        await execute(agent.client)


async def test_what_an_agent_does_not_read_it_has_not_heard(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acknowledgements are no sign of life while the same record waits to be written."""
    monkeypatch.setattr(link, "_READ_SECONDS", 0.1)
    for name in ("_TICK", "_PING_AFTER", "SILENT_AFTER"):
        monkeypatch.setattr(connection, name, getattr(connection, name) / 16)

    async def acknowledge() -> None:
        while True:
            await agent.stream.send(link.RECORD.pack(link.ACK, 0, 0))
            await anyio.sleep(0.02)

    beside = asyncio.create_task(acknowledge())
    with anyio.fail_after(30), pytest.raises(SilentError):
        await requests.write_file(agent.client, "/x", bytes(1 << 20), None)
    beside.cancel()


async def test_an_agent_that_answers_and_closes_is_given_up_after_the_grace() -> None:
    """An answer alone is no sign of life: what is received is, and the pause between attempts grows."""
    ours, theirs = (UnixStream(each) for each in socket.socketpair())
    attempts: list[float] = []

    async def reopen() -> UnixStream:
        attempts.append(time.monotonic())
        next_ours, next_theirs = (UnixStream(each) for each in socket.socketpair())
        resumed = link.OPENING_REPLY.pack(link.MAGIC, PROTOCOL_VERSION, link.RESUMED, 0)
        await next_theirs.send(resumed)
        await next_theirs.aclose()
        return next_ours

    session = link.Link(ours, grace=1.5, reopen=reopen)
    session.open()
    await theirs.send(of_the_agent(b"x"))
    assert await session.receive() == [b"x"]
    await theirs.aclose()
    with anyio.fail_after(60), pytest.raises(anyio.BrokenResourceError):
        await session.receive()
    await session.aclose()
    assert 2 <= len(attempts) <= 8


async def test_a_paused_sandbox_says_so_to_a_connection(box: Box) -> None:
    await requests.pause(await box.inner._client(), True)
    for refused in (box.inner.connect, box.inner.listen):
        with pytest.raises(SandboxPausedError, match="resume"):
            await refused(8000)
