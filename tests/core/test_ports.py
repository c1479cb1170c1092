"""Ports of sandboxes on this side: misuse, cancellation, forks, and owners that die."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping

import anyio
import pytest

from sandboxkit import ConfigurationError, Sandbox, SandboxTerminatedError, Session
from sandboxkit.provider import Box, FirstCommand, Provider
from sandboxkit.testing.conformance._base import until
from sandboxkit.testing.conformance.ports import _ECHO, running
from sandboxkit.testing.fake import FakeBox, FakeProvider
from sandboxkit.tunnels import PortConnection
from sandboxkit.types import Command, Exit, Output, SandboxInfo, SandboxSpec

DEADLINE = 60.0


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Session(FakeProvider()) as session:
        yield session.sandbox()


def connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), DEADLINE).close()
    except ConnectionRefusedError:
        return False
    except ConnectionResetError:
        pass  # accepted, and then ended because nothing listens inside
    return True


def test_a_taken_host_port_raises_oserror_and_leaves_nothing(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        sandbox.expose(80, host_port=taken.getsockname()[1]).result(DEADLINE)
    assert sandbox._life._attached == set()


class WithoutPorts(Provider):
    """A provider that implements the required methods only."""

    name = "without"

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> Box:
        return self.box("w1")

    def box(self, sandbox_id: str) -> Box:
        return _BoxWithoutPorts(self, sandbox_id)

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        none: tuple[SandboxInfo, ...] = ()
        for info in none:
            yield info


class _BoxWithoutPorts(Box):
    async def exec(self, command: Command, output: Output) -> Exit:
        return Exit(0)

    async def delete(self) -> None:
        pass


def test_a_provider_without_ports_refuses_all_three_calls() -> None:
    with Session(WithoutPorts()) as session:
        sandbox = session.sandbox()
        for call in (sandbox.connect(80), sandbox.expose(80), sandbox.serve(80, "127.0.0.1:9")):
            with pytest.raises(ConfigurationError, match="provider 'without' cannot reach"):
                call.result(DEADLINE)


def test_a_failing_handler_ends_one_connection(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(connection: PortConnection) -> None:
        if await connection.receive(1) == b"!":
            raise LookupError("the handler's own error")
        await connection.send(b"fine")

    async def main() -> None:
        async with await sandbox.serve(0, handle) as served:
            for asked, answer in ((b"!", b""), (b"?", b"fine")):
                async with await sandbox.connect(served.port) as connection:
                    await connection.send(asked)
                    assert await connection.receive() == answer

    asyncio.run(main())
    assert [record.name for record in caplog.records] == ["sandboxkit"]
    assert "LookupError: the handler's own error" in caplog.text


def test_a_cancelled_connect_ends_its_task(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    async def waits(*_: object) -> None:
        seen.append("begun")
        try:
            await anyio.sleep_forever()
        finally:
            seen.append("cancelled")

    monkeypatch.setattr(FakeBox, "connect", waits)
    connecting = sandbox.connect(80)
    until(lambda: seen == ["begun"], "it connects", DEADLINE)
    connecting.cancel()
    until(lambda: seen == ["begun", "cancelled"], "it is cancelled", DEADLINE)
    until(lambda: not sandbox._life._attached, "its task has ended", DEADLINE)


def test_close_is_idempotent_and_ends_calls_that_wait_or_come_later(sandbox: Sandbox) -> None:
    with running(sandbox, _ECHO) as port:
        connection = sandbox.connect(port).result(DEADLINE)
        exposed = sandbox.expose(port).result(DEADLINE)
        waiting = connection.receive()
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        for _ in range(2):
            connection.close().result(DEADLINE)
            exposed.close().result(DEADLINE)
        for call in (waiting, connection.receive(), connection.send(b"x")):
            with pytest.raises(ConnectionAbortedError, match="was closed"):
                call.result(DEADLINE)
    assert sandbox._life._attached == set()


def test_a_fork_does_not_keep_a_port_open(sandbox: Sandbox) -> None:
    exposed = sandbox.expose(80).result(DEADLINE)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = os.fork()
        if child == 0:
            theirs.send(b"x")
            theirs.recv(1)  # until the parent has looked
            os._exit(0)
        try:
            assert ours.recv(1) == b"x"
            assert connects(exposed.port)
            exposed.close().result(DEADLINE)
            assert not connects(exposed.port)
        finally:
            ours.send(b"x")
            os.waitpid(child, 0)


def test_a_stopped_sandbox_has_no_ports(sandbox: Sandbox) -> None:
    with sandbox:
        pass
    for call in (sandbox.connect, sandbox.expose):
        with pytest.raises(SandboxTerminatedError, match="was stopped"):
            call(80)
