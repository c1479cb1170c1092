"""Conformance tests for a sandbox's ports: connect, expose and serve."""

import asyncio
import contextlib
import errno
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

from sandboxkit import ConfigurationError, PortError, Process, Sandbox, SandboxError, Session
from sandboxkit.testing.conformance._base import DEADLINE, Conformance, box_of
from sandboxkit.testing.conformance._pytest import pytest
from sandboxkit.tunnels import PortConnection

__all__ = ["PortsConformance", "SandboxPortsConformance"]

_ECHO = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def serve(taken):
    with taken:
        while data := taken.recv(65536):
            taken.sendall(data)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
_HTTP = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode() * 10000)
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
_FLOOD = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
taken = listener.accept()[0]
while True:
    taken.sendall(bytes(65536))
"""
_STALL = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
taken, total = listener.accept()[0], 0
taken.settimeout(1)
try:
    while total < 128 << 20:
        total += taken.send(bytes(65536))
except TimeoutError:
    pass
print(total, flush=True)
"""
_ASK = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20) as asked:
    asked.sendall(b"question")
    asked.shutdown(socket.SHUT_WR)
    print(b"".join(iter(lambda: asked.recv(65536), b"")).decode())
"""
_PEERS = """
import os, socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
taken, (_, port) = listener.accept()
lines = [line.split() for line in open("/proc/net/tcp")][1:]
(uid,) = {line[7] for line in lines if line[1].endswith(f":{port:04X}")}
taken.sendall(f"{uid} {os.getuid()}".encode())
"""


@contextlib.contextmanager
def running(sandbox: Sandbox, program: str) -> Iterator[int]:
    """Run a server in the sandbox, and yield the port that it prints."""
    process = sandbox.exec(["python3", "-c", program])
    try:
        yield int(_first_line(process))
    finally:
        process.kill()
        with contextlib.suppress(SandboxError):  # the sandbox may be stopped
            process.result(DEADLINE)


def _first_line(process: Process) -> str:
    for line in process.stdout.lines():
        return line
    pytest.fail(f"the program ended: {process.result(DEADLINE)}")


def _everything(connection: PortConnection) -> bytes:
    return b"".join(iter(lambda: connection.receive().result(DEADLINE), b""))


def _received(taken: socket.socket) -> Iterator[bytes]:
    while data := taken.recv(65536):
        yield data


@contextlib.contextmanager
def _answering() -> Iterator[int]:
    """Serve a port of this machine, and yield it: read each connection to its end, then reply."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                taken, _ = listener.accept()
                with taken:
                    taken.sendall(b"answer to " + b"".join(_received(taken)))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(DEADLINE)


class PortsConformance(Conformance):
    """Connections to and from the ports of a sandbox's loopback, without a network."""

    def test_a_connection_ends_each_direction_by_itself(self, shared: Sandbox) -> None:
        data = os.urandom(3 << 20)
        with (
            running(shared, _ECHO) as port,
            shared.connect(port).result(DEADLINE) as connection,
            ThreadPoolExecutor(1) as pool,
        ):
            echoed = pool.submit(_everything, connection)
            connection.send(data).result(DEADLINE)
            connection.send_eof().result(DEADLINE)
            assert echoed.result(DEADLINE) == data

    def test_a_port_that_nothing_listens_on_refuses(self, shared: Sandbox) -> None:
        with running(shared, _ECHO) as port:
            pass
        with pytest.raises(PortError) as refused:
            shared.connect(port).result(DEADLINE)
        assert refused.value.errno == errno.ECONNREFUSED

    def test_an_unread_connection_stops_no_other_call(self, shared: Sandbox) -> None:
        with running(shared, _FLOOD) as port, shared.connect(port).result(DEADLINE) as connection:
            assert connection.receive(1).result(DEADLINE) == b"\0"
            for _ in range(5):
                assert shared.exec(["echo", "on"]).result(DEADLINE).stdout == "on\n"

    def test_an_unread_exposed_connection_holds_up_its_sender(self, shared: Sandbox) -> None:
        process = shared.exec(["python3", "-c", _STALL])
        lines = iter(process.stdout.lines())
        with (
            shared.expose(int(next(lines))).result(DEADLINE) as exposed,
            socket.create_connection(("127.0.0.1", exposed.port), DEADLINE),
        ):
            assert int(next(lines)) < 64 << 20, "more than the windows and the kernel's buffers"
        process.result(DEADLINE)

    def test_a_cut_link_repeats_and_loses_no_byte(self, sandbox: Sandbox) -> None:
        data, received = os.urandom(4 << 20), b""
        with running(sandbox, _ECHO) as port, ThreadPoolExecutor(1) as pool:
            connection = sandbox.connect(port).result(DEADLINE)
            sent = pool.submit(lambda: connection.send(data).result(DEADLINE))
            try:
                while len(received) < 1 << 20:
                    received += connection.receive().result(DEADLINE)
                self.cut(box_of(sandbox))
                while len(received) < len(data):
                    more = connection.receive().result(DEADLINE)
                    assert more, "a lost connection does not end as a finished one does"
                    received += more
            except (ConnectionError, SandboxError):
                pass  # a link that cannot be resumed ends its connections
            assert data.startswith(received)
            connection.close().result(DEADLINE)
            assert sent.exception(DEADLINE) is None or received != data

    def test_a_stop_ends_a_connection(self, sandbox: Sandbox) -> None:
        with running(sandbox, _ECHO) as port:
            connection = sandbox.connect(port).result(DEADLINE)
            waiting = connection.receive()
            sandbox.stop().result(DEADLINE)
            with pytest.raises((ConnectionError, SandboxError)):
                waiting.result(DEADLINE)
            connection.close().result(DEADLINE)

    def test_an_exposed_port_serves_clients_of_this_machine(self, shared: Sandbox) -> None:
        def get(number: int) -> bytes:
            with socket.create_connection(("127.0.0.1", exposed.port), DEADLINE) as client:
                client.sendall(b"GET /%d HTTP/1.0\r\n\r\n" % number)
                return b"".join(_received(client)).partition(b"\r\n\r\n")[2]

        with (
            running(shared, _HTTP) as port,
            shared.expose(port).result(DEADLINE) as exposed,
            ThreadPoolExecutor(8) as pool,
        ):
            answers = list(pool.map(get, range(40)))
        assert answers == [f"/{number}".encode() * 10000 for number in range(40)]

    def test_an_exposed_port_resets_a_connection_that_is_refused_inside(
        self, shared: Sandbox
    ) -> None:
        with running(shared, _ECHO) as port:
            pass
        with (
            shared.expose(port).result(DEADLINE) as exposed,
            pytest.raises(ConnectionResetError),  # of the connect or of the receive
            socket.create_connection(("127.0.0.1", exposed.port), DEADLINE) as client,
        ):
            client.recv(1)

    @pytest.mark.parametrize("end", ["close", "stop", "session"])
    def test_an_exposed_port_is_closed_with_its_connections(
        self, session: Session, sandbox: Sandbox, end: str
    ) -> None:
        with running(sandbox, _ECHO) as port:
            exposed = sandbox.expose(port).result(DEADLINE)
            address = ("127.0.0.1", exposed.port)
            with socket.create_connection(address, DEADLINE) as client:
                client.sendall(b"x")
                assert client.recv(1) == b"x"
                ends = {"close": exposed.close, "stop": sandbox.stop, "session": session.close}
                ends[end]().result(DEADLINE)
                with pytest.raises(ConnectionResetError):
                    client.recv(1)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address, DEADLINE).close()

    def test_a_served_port_leads_to_an_address_of_this_side(self, shared: Sandbox) -> None:
        with _answering() as here, shared.serve(0, f"127.0.0.1:{here}").result(DEADLINE) as served:
            asks = [shared.exec(["python3", "-c", _ASK, str(served.port)]) for _ in range(5)]
            answers = [ask.result(DEADLINE).stdout for ask in asks]
        assert answers == ["answer to question\n"] * 5

    def test_connections_that_wait_stop_no_other_one_of_a_served_port(
        self, shared: Sandbox
    ) -> None:
        async def handle(connection: PortConnection) -> None:
            asked = await connection.receive()
            await connection.send(b"answer to " + asked)

        async def main() -> bytes:
            async with AsyncExitStack() as stack:
                served = await stack.enter_async_context(await shared.serve(0, handle))
                connections = [
                    await stack.enter_async_context(await shared.connect(served.port))
                    for _ in range(5)
                ]
                await connections[-1].send(b"the last")
                return await asyncio.wait_for(connections[-1].receive(), DEADLINE)

        assert asyncio.run(main()) == b"answer to the last"

    def test_a_served_port_calls_a_handler(self, shared: Sandbox) -> None:
        loops: list[asyncio.AbstractEventLoop] = []

        async def handle(connection: PortConnection) -> None:
            loops.append(asyncio.get_running_loop())
            asked = b""
            while data := await connection.receive():
                asked += data
            await connection.send(b"handled " + asked)

        async def main() -> str:
            async with await shared.serve(0, handle) as served:
                result = await shared.exec(["python3", "-c", _ASK, str(served.port)])
            assert loops == [asyncio.get_running_loop()]
            return result.stdout

        assert asyncio.run(main()) == "handled question\n"

    def test_a_served_port_resets_a_connection_that_is_refused_here(self, shared: Sandbox) -> None:
        with _answering() as here:
            pass
        with shared.serve(0, f"127.0.0.1:{here}").result(DEADLINE) as served:
            result = shared.exec(["python3", "-c", _ASK, str(served.port)]).result(DEADLINE)
        assert (result.returncode, result.stdout) == (1, "")
        assert "Error" in result.stderr  # the reset meets a send, a shutdown or a receive

    def test_a_closed_served_port_refuses(self, shared: Sandbox) -> None:
        with _answering() as here, shared.serve(0, f"127.0.0.1:{here}").result(DEADLINE) as served:
            pass
        result = shared.exec(["python3", "-c", _ASK, str(served.port)]).result(DEADLINE)
        assert "ConnectionRefusedError" in result.stderr

    def test_a_public_address_says_who_can_reach_it(self, session: Session) -> None:
        if not session._provider.has("public_url"):
            with pytest.raises(ConfigurationError, match="public_ports"):
                session.sandbox(public_ports=[8000])
            return
        with session.sandbox(public_ports=[8000], network="internet") as sandbox:
            found = sandbox.public_url(8000).result(DEADLINE)
            assert found.url.startswith(("https://", "http://"))
            assert (found.access == "token") == bool(found.headers)
            assert not any(value in repr(found) for value in found.headers.values())
            with pytest.raises(ConfigurationError, match="public_ports"):
                sandbox.public_url(8001)

    def test_a_port_that_is_taken_is_refused(self, shared: Sandbox) -> None:
        with running(shared, _ECHO) as port, pytest.raises(PortError) as refused:
            shared.serve(port, "127.0.0.1:9").result(DEADLINE)
        assert refused.value.errno == errno.EADDRINUSE


class SandboxPortsConformance(Conformance):
    """The ports are those of the sandbox, and its own user makes the connections."""

    def test_a_connection_does_not_reach_a_port_of_this_machine(self, shared: Sandbox) -> None:
        with _answering() as here, pytest.raises(PortError) as refused:
            shared.connect(here).result(DEADLINE)
        assert refused.value.errno == errno.ECONNREFUSED

    def test_a_served_port_is_that_of_its_sandbox(self, session: Session, sandbox: Sandbox) -> None:
        asks = ["python3", "-c", _ASK]
        other = session.sandbox().start().result(DEADLINE)
        with _answering() as here, sandbox.serve(0, f"127.0.0.1:{here}").result(DEADLINE) as served:
            asks.append(str(served.port))
            assert sandbox.exec(asks).result(DEADLINE).stdout == "answer to question\n"
            assert "ConnectionRefusedError" in other.exec(asks).result(DEADLINE).stderr
            with pytest.raises(PortError):
                other.connect(served.port).result(DEADLINE)

    def test_a_connection_belongs_to_the_user_of_commands(self, shared: Sandbox) -> None:
        with running(shared, _PEERS) as port, shared.connect(port).result(DEADLINE) as connection:
            made_by, commands_run_as = _everything(connection).split()
        assert made_by == commands_run_as
