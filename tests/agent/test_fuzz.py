"""Any sequence of frames, well formed or not, ends as an error of one sandbox on either side, and nobody waits."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run

from sandboxkit import SandboxError, Session
from sandboxkit.provider import no_sandbox
from sandboxkit.providers._agent import client, link, requests, stream
from sandboxkit.providers._agent.frames import MAX_PAYLOAD, NEAR, Kind, encode, string, strings
from sandboxkit.providers._agent.launch import config_of
from sandboxkit.providers._agent.unix import UnixStream
from sandboxkit.providers.local import LocalProvider
from sandboxkit.types import Command, SandboxSpec
from tests.agent.conftest import NamespaceBox, NamespaceProvider, Run
from tests.agent.test_owner import EXIT
from tests.agent.test_protocol import WELCOME, of_the_agent
from tests.agent.test_protocol import data as record

NIGHT = os.environ.get("SANDBOXKIT_HYPOTHESIS_PROFILE") == "random"
SETTINGS = settings(
    max_examples=400 if NIGHT else 20,
    stateful_step_count=40 if NIGHT else 20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([EXIT, EXIT[1:], b"", b"\0\1", bytes(4), b"\0\0\0\1", b"\xff" * 37]),
    st.builds(string, st.binary(max_size=20)),
    st.integers(0, 200).map(lambda number: bytes(4) + string(str(number))),
    st.sampled_from([64 << 10, 1 << 20]).map(bytes),
)
FRAMES = st.builds(encode, st.sampled_from(Kind), st.integers(0, 6) | st.just(2**32 - 1), PAYLOADS)
NOT_FRAMES = st.one_of(
    st.binary(min_size=1, max_size=60),
    st.builds(link.RECORD.pack, st.integers(0, 5), st.integers(0, 300), st.integers(0, 5)),
    st.just(link.RECORD.pack(link.ACK, 0, 0) * 2000),
)


async def tar() -> AsyncIterator[bytes]:
    yield bytes(300_000)


class PlayedBox(NamespaceBox):
    """A sandbox whose agent the test plays."""

    agent: socket.socket

    async def start(self, spec: SandboxSpec) -> None:
        ours, self.agent = socket.socketpair()
        self.agent.setblocking(False)
        self.agent.send(of_the_agent(WELCOME))
        await self.attach(UnixStream(ours), config_of(spec))

    async def _connect(self) -> UnixStream:
        raise no_sandbox(self.id)


class Owner(RuleBasedStateMachine):
    """The owner of an agent that sends anything, and of an honest one."""

    def __init__(self) -> None:
        super().__init__()
        self.runner, self.tasks = asyncio.Runner(), list[asyncio.Task[object]]()
        self.patch, self.reported = pytest.MonkeyPatch(), list[object]()
        self.patch.setattr(stream, "_LOOK", 0.01)
        for name in ("_LONG_KILL_PATIENCE", "_KILL_PATIENCE"):
            self.patch.setattr(client, name, 0.01)
        report = self.runner.get_loop().set_exception_handler
        report(lambda _, context: self.reported.append(context))
        self.provider = NamespaceProvider(Path(), PlayedBox)
        self.box, self.neighbour = boxes = [PlayedBox(self.provider, each) for each in "01"]
        for box in boxes:
            self.runner.run(box.start(SandboxSpec()))
        self.agent, self.honest, self.client = self.box.agent, self.neighbour.agent, self.box.client
        self.sent, self.answered, self.asked = len(WELCOME), len(WELCOME), 0

    async def _send(self, data: bytes) -> None:
        with suppress(OSError, TimeoutError):  # it has closed, or waits for its own turn to write
            with suppress(BlockingIOError):
                while self.agent.recv(1 << 20):
                    pass
            async with asyncio.timeout(5):
                await asyncio.get_running_loop().sock_sendall(self.agent, data)
        for _ in range(20):  # turns of the loop, which reads meanwhile what has come
            await asyncio.sleep(0)

    @rule(
        call=st.sampled_from(
            [
                *((name,) for name in ("usage", "metered", "logs", "wait", "reset")),
                ("exec", Command(("true",)), Run().output),
                ("run_python", "1", Command(("python",)), Run().output),
                ("put_archive", "/x", tar),
                ("read_file", "/x", {"max_bytes": 1000}),
                ("write_file", "/x", bytes(300_000), {"mode": None}),
                *((name, "/x") for name in ("list_dir", "stat")),
                *(("renew", 5), ("connect", 80), ("listen", 80)),
            ]
        )
    )
    def ask(self, call: tuple[Any, ...]) -> None:  # Any: the arguments of whatever is called
        async def begin() -> None:
            name, *given = call
            options = given.pop() if given and isinstance(given[-1], dict) else {}
            given = [tar() if each is tar else each for each in given]
            asked = getattr(self.box, name)(*given, **options)
            self.tasks.append(asyncio.create_task(asked))
            await self._send(b"")

        self.runner.run(begin())

    @precondition(lambda self: self.tasks)
    @rule(number=st.integers(0, 50))
    def cancel(self, number: int) -> None:
        self.tasks[number % len(self.tasks)].cancel()
        self.runner.run(asyncio.sleep(0.03))

    @rule(sent=st.lists(FRAMES, min_size=1, max_size=4).map(b"".join), cut=st.integers(1, 100_000))
    def say(self, sent: bytes, cut: int) -> None:
        cut = max(cut, len(sent) // 50)
        pieces = [(at, sent[at : at + cut]) for at in range(0, len(sent), cut)]
        self.runner.run(self._send(b"".join(record(self.sent + at, data) for at, data in pieces)))
        self.sent += len(sent)

    @rule(data=NOT_FRAMES)
    def say_what_is_no_frame(self, data: bytes) -> None:
        self.runner.run(self._send(data))

    @rule()
    def close(self) -> None:
        self.agent.close()

    @rule()
    def serve_a_neighbour(self) -> None:
        async def served() -> None:
            loop = asyncio.get_running_loop()
            asked = self.neighbour.exec(Command(("true",)), Run().output)
            task = asyncio.create_task(asked)
            self.asked += 1
            async with asyncio.timeout(30):
                await loop.sock_recv(self.honest, 1 << 20)
                frame = encode(Kind.EXIT, self.asked, EXIT)
                await loop.sock_sendall(self.honest, record(self.answered, frame))
                self.answered += len(frame)
                assert (await task).status == 0

        self.runner.run(served())

    @invariant()
    def what_waits_is_bounded_and_errors_are_of_the_sandbox(self) -> None:
        assert self.client is not None
        for each in self.client._streams.values():
            waiting = sum(len(frame.payload) for frame in each._frames)
            assert waiting <= NEAR.from_agent + MAX_PAYLOAD
        assert "failed" not in str(self.client.why_ended)
        assert self.reported == []
        for task in self.tasks:
            error = None if not task.done() or task.cancelled() else task.exception()
            assert error is None or isinstance(error, SandboxError), repr(error)

    def teardown(self) -> None:
        async def end() -> None:
            async with asyncio.timeout(30):
                await asyncio.gather(*self.tasks, return_exceptions=True)
            await self.provider.aclose()

        self.agent.close()
        self.honest.close()
        self.runner.run(end())
        self.what_waits_is_bounded_and_errors_are_of_the_sandbox()
        self.runner.close()
        self.patch.undo()


def test_whatever_an_agent_sends_its_owners_calls_end_and_its_neighbours_are_served() -> None:
    run(Owner, settings=SETTINGS)


def hello(role: int = 0) -> bytes:
    payload = requests.hello(None)
    return encode(Kind.HELLO, 0, payload[:8] + bytes([role]) + payload[9:])


ARGV = st.sampled_from([["true"], ["cat"], ["yes"], ["sh", "-c", "exit 3"], ["/none"], []])
EXECS = st.builds(
    lambda argv, flags, more: strings(argv) + bytes(12) + bytes([flags]) + bytes(4) + more,
    *(ARGV, st.integers(0, 31), st.sampled_from([b"", b"\0", bytes(5), b"\xff" * 9])),
)
CALLS = st.builds(
    lambda operation, path, more: bytes([operation]) + path + more,
    # RENEW and PAUSE would end, or stop, the sandbox that the test goes on with.
    st.sampled_from([*range(8), *range(9, 18), 19, 20, 99]),
    st.sampled_from(["/tmp", "/etc/passwd", "", "/tmp/x", "\0", "x"]).map(string) | st.just(b""),
    st.binary(max_size=16) | st.sampled_from([bytes(2), bytes(8), b"\xff" * 8, b"\0\0\0\x14hi"]),
)
STREAMS = st.integers(1, 4)


class Guest(RuleBasedStateMachine):
    """A client of the real agent that sends anything."""

    path = ""

    def __init__(self) -> None:
        super().__init__()
        self.connection = socket.socket()
        self._connect(0, False, hello())

    def _put(self, data: bytes) -> None:
        with suppress(OSError):  # it has closed, or reads nothing while its own output is not read
            self.connection.sendall(data)

    def _connect(self, grace: int, resume: bool, first: bytes) -> None:
        self.connection.close()
        self.connection, self.sent = socket.socket(socket.AF_UNIX), 0
        self.connection.settimeout(5)
        self.connection.connect(self.path)
        self._put(link.OPENING.pack(link.MAGIC, 3, os.urandom(16), resume, grace, 0))
        self._say(first)

    @rule(
        grace=st.sampled_from([0, 0, 0, 50]),
        resume=st.sampled_from([False, False, True]),
        first=st.just(hello()) | st.builds(hello, st.integers(0, 3)) | st.binary(max_size=30),
    )
    def reconnect(self, grace: int, resume: bool, first: bytes) -> None:
        self._connect(grace, resume, first)

    @rule(
        frame=FRAMES.filter(lambda frame: frame[4] != Kind.CALL)
        | st.builds(encode, st.just(Kind.EXEC), STREAMS, EXECS)
        | st.builds(encode, st.just(Kind.CALL), STREAMS, CALLS)
    )
    def say_a_frame(self, frame: bytes) -> None:
        self._say(frame)

    def _say(self, data: bytes) -> None:
        self._put(record(self.sent, data))
        self.sent += len(data)

    @rule(data=NOT_FRAMES)
    def say_what_is_no_frame(self, data: bytes) -> None:
        self._put(data)

    @rule()
    def hear(self) -> None:
        self.connection.setblocking(False)
        with suppress(OSError):
            self.connection.recv(1 << 20)
        self.connection.settimeout(5)

    def teardown(self) -> None:
        """What still waits for more is told that no more comes; the agent answers or closes."""
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
        monkeypatch.setattr(Guest, "path", str(tmp_path / box.id / "agent.sock"))
        run(Guest, settings=SETTINGS)
        assert box.exec(["echo", "alive"], timeout=60).result(90).stdout == "alive\n"
        pid = provider.box(box.id)._agent_pid()
        status = Path(f"/proc/{pid}/status").read_text()
        assert int(status.partition("VmRSS:")[2].split()[0]) < 100_000, "kB of the agent"
