"""The link: exact across connections that break anywhere, and every command started once."""

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream
from anyio.streams.stapled import StapledByteStream

from sandboxkit import errors
from sandboxkit._life import _loop
from sandboxkit.provider import no_sandbox
from sandboxkit.providers._agent import frames, link, requests
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.failures import ConnectionEndedError
from sandboxkit.providers._agent.frames import Kind
from sandboxkit.types import Command, SandboxInfo, SandboxState, StdinItem
from tests.agent.conftest import Box, NamespaceBox, NamespaceProvider, Run, at_start, made, until

pytestmark = pytest.mark.anyio

FOREVER = float("inf")


@pytest.fixture(autouse=True)
async def as_in_the_background_loop(anyio_backend: str) -> None:
    """What sandboxkit's own loop does not report, this one does not either."""
    asyncio.get_running_loop().set_exception_handler(_loop._report)


class Breaking(StapledByteStream):
    """Carries `sends` bytes one way and `receives` bytes the other, and then breaks, mid-record."""

    def __init__(self, stream: ByteStream, sends: float, receives: float) -> None:
        super().__init__(stream, stream)
        self._sends, self._receives = sends, receives

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self._receives <= 0:
            await self._break()
        data = await super().receive(int(min(max_bytes, self._receives)))
        self._receives -= len(data)
        return data

    async def send(self, item: bytes) -> None:
        if len(item) > self._sends:
            await super().send(item[: int(self._sends)])
            self._sends = 0
            await self._break()
        self._sends -= len(item)
        await super().send(item)

    async def _break(self) -> None:
        await self.aclose()
        raise anyio.BrokenResourceError


class Repeating(StapledByteStream):
    """Delivers everything that is sent twice, as a router does that missed an answer."""

    async def send(self, item: bytes) -> None:
        await super().send(item + item)


class Silent(StapledByteStream):
    """Carries everything until it is told to fall silent; it never breaks."""

    silent = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await super().receive(max_bytes)
        if self.silent:
            await anyio.sleep_forever()
        return data

    async def send(self, item: bytes) -> None:
        if not self.silent:
            await super().send(item)


class Breakable:
    """Opens connections to a sandbox's agent; the first ones break as planned."""

    def __init__(self, box: Box, plan: Sequence[tuple[float, float]]) -> None:
        self.box, self.plan, self.opened = box, list(plan), 0

    async def open(self) -> ByteStream:
        self.opened += 1
        sends, receives = self.plan.pop(0) if self.plan else (FOREVER, FOREVER)
        return Breaking(await self.box.inner._connect(), sends, receives)

    async def client(self, grace: float = 10.0) -> AgentClient:
        return await AgentClient.start(
            await self.open(), requests.hello(None), grace=grace, reopen=self.open
        )


def payload(*argv: str) -> bytes:
    """An EXEC frame's, without anything but its arguments."""
    return frames.strings(argv) + frames.strings([]) + frames.string("") * 2 + bytes(5)


async def run(client: AgentClient, *argv: str, stdin: bytes | None = None) -> Run:
    async def items() -> AsyncIterator[StdinItem]:
        yield stdin or b""

    output = Run()
    command = Command(argv, stdin=None if stdin is None else items())
    output.exit = await requests.execute(client, command, output.output)
    return output


async def counted(client: AgentClient, times: Path) -> None:
    """Commands whose outcome tells whether each ran once and all of it arrived."""
    script = f"echo x >> {times}; cat; printf e >&2; exit 7"
    output = await run(client, "sh", "-c", script, stdin=b"in" * 100)
    assert (output.status, output.stdout, output.stderr) == (7, b"in" * 100, b"e")
    assert await requests.read_file(client, str(times), 100) == b"x\n"


@pytest.mark.timeout(900)  # on a busy machine: these are many connections
@pytest.mark.parametrize("apart", [7, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("way", ["sends", "receives"])
async def test_a_link_cut_anywhere_delivers_every_byte_once(box: Box, way: str, apart: int) -> None:
    """The handshake needs about 150 bytes one way and 50 the other, the rest about 800.

    Every byte of the handshake is tried each time, and every seventh of the rest; at night every byte.
    """
    for cut in [*range(1, 200), *range(200, 1100, apart)]:
        plan = (float(cut), FOREVER) if way == "sends" else (FOREVER, float(cut))
        breakable = Breakable(box, [plan])
        with anyio.fail_after(60):
            try:
                client = await breakable.client()
            except ConnectionEndedError:
                assert cut < 120  # there was no session yet to carry on
                continue
            times = box.workdir / f"{way}-{cut}"
            await counted(client, times)
            await client.aclose()
        assert breakable.opened == 2 or cut > 350


async def test_twenty_streams_over_connections_that_break_again_and_again(box: Box) -> None:
    seed = random.Random(7)
    plan = [(seed.randint(300, 40_000), seed.randint(300, 200_000)) for _ in range(40)]
    breakable = Breakable(box, [(FOREVER, 100_000), *plan])
    client = await breakable.client()
    output: dict[int, Run] = {}

    async def one(number: int) -> None:
        script = f"echo x >> {box.workdir}/{number}; seq {number} {number + 20_000}; sha1sum"
        output[number] = await run(client, "sh", "-c", script, stdin=b"%d" % number * 20_000)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(one, number)
    for number, text in output.items():
        lines = [str(n) for n in range(number, number + 20_001)]
        lines.append(f"{hashlib.sha1(b'%d' % number * 20_000).hexdigest()}  -")
        assert text.stdout.decode().split("\n") == [*lines, ""]
        assert (box.workdir / str(number)).read_text() == "x\n"
    assert breakable.opened > 10
    await client.aclose()


@pytest.mark.parametrize("grace", [0.0, 10.0])
async def test_a_write_that_is_delivered_twice_counts_once(box: Box, grace: float) -> None:
    stream = await box.inner._connect()
    connection = await AgentClient.start(
        Repeating(stream, stream), requests.hello(None), grace=grace, reopen=Breakable(box, ()).open
    )
    data = os.urandom(3 << 20)
    await requests.write_file(connection, str(box.workdir / "twice"), data, None)
    assert await requests.read_file(connection, str(box.workdir / "twice"), len(data)) == data
    assert connection.ended is None
    await connection.aclose()


async def test_commands_end_when_no_client_reconnects_in_time(box: Box) -> None:
    breakable = Breakable(box, [(FOREVER, FOREVER), (0.0, 0.0), (0.0, 0.0)])
    client = await breakable.client(grace=0.5)
    client.open(Kind.EXEC, payload("sleep", "600"))
    await box.settled("sleep 600")
    breakable.plan = [(0.0, 0.0)] * 1000
    client._link.give_up()
    await box.settled()
    await until(lambda: client.ended is not None)


async def test_a_session_ends_quietly_when_no_connection_can_be_opened_in_time(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen with an API server that did not reply: the timeout ended a task that nobody awaits."""
    monkeypatch.setattr(link, "_REPLY_SECONDS", 0.1)

    async def never() -> ByteStream:
        await anyio.sleep_forever()
        raise AssertionError

    stream = await Breakable(box, []).open()
    agent = await AgentClient.start(stream, requests.hello(None), grace=0.2, reopen=never)
    reader = agent._tasks[0]
    agent._link.give_up()
    await asyncio.wait([reader], timeout=60)
    assert reader.exception() is None
    assert agent.ended is not None
    assert "no new connection in time" in str(agent.why_ended)


async def test_a_client_that_leaves_ends_its_commands_at_once(box: Box) -> None:
    client = await Breakable(box, []).client(grace=600)
    client.open(Kind.EXEC, payload("sleep", "600"))
    await box.settled("sleep 600")
    await client.aclose()
    await box.settled()


async def test_without_a_grace_a_session_ends_with_its_connection(box: Box) -> None:
    breakable = Breakable(box, [(FOREVER, 300.0)])
    client = await AgentClient.start(await breakable.open(), requests.hello(None))
    with pytest.raises(ConnectionEndedError):
        await run(client, "seq", "1000")
    assert breakable.opened == 1


async def test_another_agent_is_not_taken_for_the_old_one(provider: NamespaceProvider) -> None:
    box, other = await made(provider), await made(provider)
    await box.client.aclose()
    os.replace(other.inner.socket, box.inner.socket)
    with pytest.raises(errors.SandboxTerminatedError, match="was restarted"):
        await box.exec("true")


class Listed(NamespaceBox):
    """As its base, but it also knows whether it lives."""

    async def info(self) -> SandboxInfo:
        if self.process is None or self.process.returncode is not None:
            raise no_sandbox(self.id)
        return SandboxInfo(self.id, self.provider.name, SandboxState.RUNNING, {})


@pytest.fixture
async def detached(provider: NamespaceProvider) -> AsyncIterator[Box]:
    """A sandbox whose owner has left it, so that its connections are further ones."""
    box = await made(NamespaceProvider(provider.folder, Listed), detach=True, lifetime=60)
    await box.inner.forget()
    yield box
    await box.inner.delete()


async def test_a_command_on_a_connection_that_broke_has_no_known_outcome(detached: Box) -> None:
    started = Run()
    async with at_start(started, lambda: detached.client._link.aclose()):
        with pytest.raises(errors.OutcomeUnknownError, match="is unknown") as caught:
            await detached.sh("echo; sleep 600", run=started)
        assert not caught.value.retryable
    assert (await detached.exec("echo", "again")).stdout == b"again\n"


async def test_a_repeatable_call_is_marked_repeatable(detached: Box) -> None:
    client = await detached.inner._client()
    client._end("")
    with pytest.raises(errors.ProviderUnavailableError) as caught:
        async with detached.inner.call():
            client.open(Kind.EXEC, payload("true"))
    assert caught.value.retryable
    await client.aclose()
