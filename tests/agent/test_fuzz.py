"""Any sequence of frames, well formed or not, ends as an error of one sandbox on either side, and nobody waits."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sandboxkit import SandboxError, Session
from sandboxkit.errors import SandboxNotFoundError
from sandboxkit.providers._agent import client, frames, link, requests, stream
from sandboxkit.providers._agent.frames import NEAR, PROTOCOL_VERSION, Kind
from sandboxkit.providers._agent.instance import Instance
from sandboxkit.providers._agent.launch import config_of
from sandboxkit.providers._agent.provider import AgentProvider
from sandboxkit.providers._agent.unix import UnixStream
from sandboxkit.providers.local import LocalProvider
from sandboxkit.types import Command, SandboxInfo, SandboxSpec, SandboxState
from tests.agent.test_owner import EXIT, WELCOME

NIGHT = os.environ.get("SANDBOXKIT_HYPOTHESIS_PROFILE") == "random"
SETTINGS = settings(
    max_examples=400 if NIGHT else 25,
    stateful_step_count=40 if NIGHT else 20,
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
STREAMS = st.integers(0, 6) | st.just(2**32 - 1)
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([EXIT, EXIT[1:], b"", b"\0\1", bytes(4), b"\0\0\0\1", b"\xff" * 37]),
    st.builds(frames.string, st.binary(max_size=20)),
    st.builds(lambda number: bytes(4) + frames.string(str(number)), st.integers(0, 200)),
    st.sampled_from([64 << 10, 1 << 20]).map(bytes),
)


async def _drop(*_: object) -> None:
    pass


async def _turns() -> None:
    for _ in range(20):  # of the loop, which reads meanwhile what has come
        await asyncio.sleep(0)


async def _tar() -> AsyncIterator[bytes]:
    yield bytes(300_000)


_Ask = Callable[[AgentProvider[Instance], str], Coroutine[Any, Any, object]]
ASKS: dict[str, _Ask] = {
    "exec": lambda p, box: p.exec(box, Command(("true",)), _drop),
    "python": lambda p, box: p.run_python(box, "1", Command(("python",)), _drop),
    "read": lambda p, box: p.read_file(box, "/x", max_bytes=1000),
    "write": lambda p, box: p.write_file(box, "/x", bytes(300_000), mode=None),
    "put": lambda p, box: p.put_archive(box, "/x", _tar()),
    "list": lambda p, box: p.list_dir(box, "/"),
    "stat": lambda p, box: p.stat(box, "/"),
    "usage": lambda p, box: p.usage(box),
    "metered": lambda p, box: p.metered(box),
    "logs": lambda p, box: p.logs(box),
    "wait": lambda p, box: p.wait(box),
    "reset": lambda p, box: p.reset(box),
    "renew": lambda p, box: p.renew(box, 5),
    "connect": lambda p, box: p.connect(box, 80),
    "listen": lambda p, box: p.listen(box, 80),
}


class PlayedProvider(AgentProvider[Instance]):
    """Sandboxes whose agents the test plays."""

    name = "played"

    def __init__(self) -> None:
        super().__init__(Instance)
        self.agents: dict[str, socket.socket] = {}

    async def create(self, spec: SandboxSpec) -> str:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        sandbox_id = str(len(self.agents))
        self.agents[sandbox_id] = theirs
        reply = link.OPENING_REPLY.pack(link.MAGIC, PROTOCOL_VERSION, link.OPENED, 0)
        theirs.send(reply + link.RECORD.pack(link.DATA, 0, len(WELCOME)) + WELCOME)
        await self._attach(sandbox_id, UnixStream(ours), config_of(spec))
        return sandbox_id

    async def _connect(self, sandbox_id: str) -> UnixStream:
        raise SandboxNotFoundError(f"no sandbox {sandbox_id!r}")

    async def get(self, sandbox_id: str) -> SandboxInfo:
        return SandboxInfo(sandbox_id, self.name, SandboxState.RUNNING, {})

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        for sandbox_id in self.agents:
            yield await self.get(sandbox_id)

    async def delete(self, sandbox_id: str) -> None:
        await self._forget(sandbox_id)


class OwnerMachine(RuleBasedStateMachine):
    """An agent that sends anything, its owner, and an honest agent beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.runner, self.tasks = asyncio.Runner(), list[asyncio.Task[object]]()
        self.patch, self.reported = pytest.MonkeyPatch(), list[object]()
        self.patch.setattr(client, "_LONG_KILL_PATIENCE", 0.02)
        self.patch.setattr(client, "_KILL_PATIENCE", 0.01)
        self.patch.setattr(stream, "_LOOK", 0.01)
        loop = self.runner.get_loop()
        loop.set_exception_handler(lambda _, context: self.reported.append(context))
        self.provider = PlayedProvider()
        self.hostile, self.honest = (
            self.runner.run(self.provider.create(SandboxSpec())) for _ in range(2)
        )
        self.agent, self.sent = self.provider.agents[self.hostile], len(WELCOME)
        self.client = self.provider._known(self.hostile).client
        self.answered, self.asked = len(WELCOME), 0

    async def _send(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        with suppress(
            OSError, TimeoutError
        ):  # it has closed, or does not read while its task waits
            with suppress(BlockingIOError):
                while self.agent.recv(1 << 20):
                    pass
            async with asyncio.timeout(5):
                await loop.sock_sendall(self.agent, data)
        await _turns()

    @rule(name=st.sampled_from(sorted(ASKS)))
    def ask(self, name: str) -> None:
        async def begin() -> None:
            asked: Coroutine[Any, Any, object] = ASKS[name](self.provider, self.hostile)
            self.tasks.append(asyncio.create_task(asked))
            await _turns()

        self.runner.run(begin())

    @precondition(lambda self: self.tasks)
    @rule(number=st.integers(0, 50))
    def cancel(self, number: int) -> None:
        self.tasks[number % len(self.tasks)].cancel()
        self.runner.run(asyncio.sleep(0.03))

    @rule(
        sent=st.lists(st.tuples(st.sampled_from(Kind), STREAMS, PAYLOADS), min_size=1, max_size=4),
        cut=st.integers(1, 100_000),
    )
    def say(self, sent: list[tuple[Kind, int, bytes]], cut: int) -> None:
        data, records = b"".join(frames.encode(*each) for each in sent), b""
        for at in range(0, len(data), max(cut, len(data) // 50)):
            piece = data[at : at + max(cut, len(data) // 50)]
            records += link.RECORD.pack(link.DATA, self.sent, len(piece)) + piece
            self.sent += len(piece)
        self.runner.run(self._send(records))

    @rule(kind=st.integers(0, 5), offset=st.integers(0, 300), size=st.integers(0, 5))
    def record(self, kind: int, offset: int, size: int) -> None:
        self.runner.run(self._send(link.RECORD.pack(kind, offset, size) + bytes(size)))

    @rule(data=st.binary(min_size=1, max_size=60))
    def junk(self, data: bytes) -> None:
        self.runner.run(self._send(data))

    @rule()
    def flood(self) -> None:
        self.runner.run(self._send(link.RECORD.pack(link.ACK, 0, 0) * 2000))

    @rule()
    def close(self) -> None:
        self.agent.close()

    @rule()
    def serve_a_neighbour(self) -> None:
        async def served() -> None:
            agent, loop = self.provider.agents[self.honest], asyncio.get_running_loop()
            asked = asyncio.create_task(self.provider.exec(self.honest, Command(("true",)), _drop))
            self.asked += 1
            async with asyncio.timeout(30):
                await loop.sock_recv(agent, 1 << 20)
                frame = frames.encode(Kind.EXIT, self.asked, EXIT)
                record = link.RECORD.pack(link.DATA, self.answered, len(frame)) + frame
                self.answered += len(frame)
                await loop.sock_sendall(agent, record)
                assert (await asked).status == 0

        self.runner.run(served())

    @invariant()
    def what_waits_is_bounded_and_errors_are_of_the_sandbox(self) -> None:
        assert self.client is not None
        for each in self.client._streams.values():
            waiting = sum(len(frame.payload) for frame in each._frames)
            assert waiting <= NEAR.from_agent + frames.MAX_PAYLOAD
        assert "failed" not in str(self.client.why_ended)
        assert self.reported == []
        for task in self.tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                assert isinstance(error, SandboxError), repr(error)

    def teardown(self) -> None:
        async def end() -> None:
            async with asyncio.timeout(30):
                await asyncio.gather(*self.tasks, return_exceptions=True)
            await self.provider.aclose()

        for agent in self.provider.agents.values():
            agent.close()
        self.runner.run(end())
        self.what_waits_is_bounded_and_errors_are_of_the_sandbox()
        self.runner.close()
        self.patch.undo()


def test_whatever_an_agent_sends_its_owners_calls_end_and_its_neighbours_are_served() -> None:
    run_state_machine_as_test(OwnerMachine, settings=SETTINGS)


def hello(role: int = 0) -> bytes:
    payload = bytearray(requests.hello(None))
    payload[8] = role
    return frames.encode(Kind.HELLO, 0, bytes(payload))


ARGV = st.sampled_from([["true"], ["cat"], ["yes"], ["sh", "-c", "exit 3"], ["/none"], []])
EXECS = st.builds(
    lambda argv, flags, more: (
        frames.strings(argv) + frames.strings(["A=1"]) + frames.string("") * 2 + flags + more
    ),
    ARGV,
    st.builds(struct.pack, st.just(">BHH"), st.integers(0, 31), st.just(24), st.just(80)),
    st.sampled_from([b"", b"\0", bytes(5), b"\xff" * 9]),
)
PATHS = st.builds(frames.string, st.sampled_from(["/tmp", "/etc/passwd", "", "/tmp/x", "\0", "x"]))
CALLS = st.builds(
    lambda operation, path, more: bytes([operation]) + path + more,
    # RENEW and PAUSE would end, or stop, the sandbox that the test goes on with.
    st.sampled_from([*range(8), *range(9, 18), 19, 20, 99]),
    PATHS | st.just(b""),
    st.binary(max_size=16) | st.sampled_from([bytes(2), bytes(8), b"\xff" * 8, b"\0\0\0\x14hi"]),
)


class AgentMachine(RuleBasedStateMachine):
    """A client of the real agent that sends anything."""

    path = ""

    def __init__(self) -> None:
        super().__init__()
        self.connection: socket.socket | None = None
        self.sent = self.number = 0

    def _put(self, data: bytes) -> None:
        if self.connection is not None:
            try:
                self.connection.sendall(data)
            except OSError:  # it has closed, or reads nothing while its own output is not read
                self._close()

    def _close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def _data(self, data: bytes) -> None:
        self._put(link.RECORD.pack(link.DATA, self.sent, len(data)) + data)
        self.sent += len(data)

    @initialize()
    def begin(self) -> None:
        self._connect(0, False, hello())

    @rule(
        grace=st.sampled_from([0, 0, 0, 50]),
        resume=st.sampled_from([False, False, True]),
        first=st.just(hello()) | st.builds(hello, st.integers(0, 3)) | st.binary(max_size=30),
    )
    def reconnect(self, grace: int, resume: bool, first: bytes) -> None:
        self._connect(grace, resume, first)

    def _connect(self, grace: int, resume: bool, first: bytes) -> None:
        self._close()
        self.connection, self.sent = socket.socket(socket.AF_UNIX), 0
        self.connection.settimeout(5)
        self.connection.connect(self.path)
        session = os.urandom(16)
        self._put(link.OPENING.pack(link.MAGIC, PROTOCOL_VERSION, session, resume, grace, 0))
        self._data(first)

    @rule(kind=st.sampled_from(Kind), stream=STREAMS, payload=PAYLOADS)
    def say(self, kind: Kind, stream: int, payload: bytes) -> None:
        if kind != Kind.CALL:
            self._data(frames.encode(kind, stream, payload))

    @rule(stream=st.integers(1, 4), payload=EXECS)
    def execute(self, stream: int, payload: bytes) -> None:
        self._data(frames.encode(Kind.EXEC, stream, payload))

    @rule(stream=st.integers(1, 4), payload=CALLS)
    def call(self, stream: int, payload: bytes) -> None:
        self._data(frames.encode(Kind.CALL, stream, payload))

    @rule(kind=st.integers(0, 5), offset=st.integers(0, 300), size=st.integers(0, 5))
    def record(self, kind: int, offset: int, size: int) -> None:
        self._put(link.RECORD.pack(kind, offset, size) + bytes(size if kind == 0 else 0))

    @rule(data=st.binary(min_size=1, max_size=60))
    def junk(self, data: bytes) -> None:
        self._put(data)

    @rule()
    def hear(self) -> None:
        if self.connection is not None:
            self.connection.setblocking(False)
            with suppress(OSError):
                self.connection.recv(1 << 20)
            self.connection.settimeout(5)

    def teardown(self) -> None:
        """What still waits for more is told that no more comes; the agent answers or closes."""
        if self.connection is not None:
            with suppress(ConnectionResetError), self.connection:
                self.connection.settimeout(30)
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_WR)
                while self.connection.recv(1 << 20):
                    pass


def test_whatever_a_client_sends_the_agent_closes_and_serves_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path))
    provider = LocalProvider()
    with Session(provider) as session:
        box = session.sandbox().start().result(60)
        assert box.id is not None
        monkeypatch.setattr(AgentMachine, "path", str(tmp_path / box.id / "agent.sock"))
        run_state_machine_as_test(AgentMachine, settings=SETTINGS)
        assert box.exec(["echo", "alive"], timeout=60).result(90).stdout == "alive\n"
        pid = provider._agent_pid(provider._known(box.id))
        status = Path(f"/proc/{pid}/status").read_text()
        resident = int(status.partition("VmRSS:")[2].split()[0])
        assert resident < 100_000, "kB of the agent"
