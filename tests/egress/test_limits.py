"""The limits of egress: time, bytes, connections, and servers that misbehave."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from sandboxkit import Sandbox
from sandboxkit.tunnels import PortConnection
from tests.egress.world import DEADLINE, Names, Origin, Records, egress, proxy_port


@pytest.fixture
def port(shared: Sandbox) -> Callable[..., int]:
    """Set the network of the sandbox, and return the port of its proxy."""

    def change(records: Records, *allow: str, **limits: object) -> int:
        shared.set_network(egress(records, *allow, **limits)).result(DEADLINE)
        return proxy_port(shared)

    return change


def everything(connection: PortConnection) -> bytes:
    """Return what the proxy sends until it ends."""
    return b"".join(iter(lambda: connection.receive().result(DEADLINE), b""))


def asked(name: str, path: str = "/") -> bytes:
    """Return a request for a name with a port."""
    return f"GET http://{name}{path} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode()


@contextlib.contextmanager
def raw_server(*answers: bytes) -> Iterator[int]:
    """Serve one connection: read a request, send what is given, and close. Yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE)

        def serve() -> None:
            with contextlib.suppress(OSError):
                taken, _ = server.accept()
                with taken:
                    taken.settimeout(DEADLINE)
                    while b"\r\n\r\n" not in taken.recv(65536):
                        pass
                    for answer in answers:
                        taken.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.close()
            thread.join(DEADLINE)


@pytest.mark.parametrize("sent", [b"", b"GET http://web.test/ HTTP/1.1\r\n", b"GET"])
def test_a_slow_request_is_refused(
    sent: bytes, shared: Sandbox, port: Callable[..., int], records: Records
) -> None:
    number = port(records, "web.test", header_seconds=0.2)
    with shared.connect(number).result(DEADLINE) as connection:
        if sent:
            connection.send(sent).result(DEADLINE)
        assert everything(connection).startswith(b"HTTP/1.1 408 ")
    assert "the head of the request took longer than 0.2 s" in records.wait().reason


def test_a_slow_first_message_of_tls_is_refused(
    shared: Sandbox, port: Callable[..., int], origin: Origin, names: Names, records: Records
) -> None:
    web, reason = f"web.test:{origin.port}", ""
    for turn, seconds in enumerate((0.2, 2.0, 20.0), 1):  # on a busy machine the head is late, too
        number = port(records, web, header_seconds=seconds)
        with shared.connect(number).result(DEADLINE) as connection:
            connection.send(f"CONNECT {web} HTTP/1.1\r\n\r\n").result(DEADLINE)
            answer = connection.receive().result(DEADLINE)
            if in_time := answer.startswith(b"HTTP/1.1 200"):
                connection.send(b"\x16\3\1").result(DEADLINE)
                with pytest.raises(ConnectionError):
                    connection.receive().result(DEADLINE)
        reason = records.wait(turn).reason
        if in_time:
            break
    assert "the first message of TLS took longer" in reason


def test_an_idle_connection_is_cut(
    shared: Sandbox, port: Callable[..., int], origin: Origin, names: Names, records: Records
) -> None:
    web = f"web.test:{origin.port}"
    number = port(records, web, idle_seconds=0.2)
    with shared.connect(number).result(DEADLINE) as connection:
        head = f"POST http://{web}/ HTTP/1.1\r\nHost: {web}\r\nContent-Length: 10\r\n\r\n"
        connection.send(head + "12345").result(DEADLINE)
        assert everything(connection).startswith(b"HTTP/1.1 408 ")
    record = records.wait()
    assert record.reason == "nothing passed for 0.2 s"
    assert record.allowed


def test_bytes_are_limited_in_all(
    shared: Sandbox, port: Callable[..., int], origin: Origin, names: Names, records: Records
) -> None:
    web = f"web.test:{origin.port}"
    number = port(records, web, max_bytes=20_000)
    body = bytes(15_000)
    head = f"POST http://{web}/ HTTP/1.1\r\nHost: {web}\r\nContent-Length: {len(body)}\r\n\r\n"
    with shared.connect(number).result(DEADLINE) as connection:
        connection.send(head.encode() + body).result(DEADLINE)
        with contextlib.suppress(ConnectionError):
            assert len(everything(connection)) < 6_000
    assert records.wait().reason == "the limit max_bytes is reached"
    with shared.connect(number).result(DEADLINE) as connection:
        connection.send(asked(web)).result(DEADLINE)
        assert everything(connection).startswith(b"HTTP/1.1 403 ")
    assert "max_bytes=20000 is reached" in records.wait(2).reason


def test_connections_are_limited_and_further_ones_are_recorded(
    shared: Sandbox, port: Callable[..., int], origin: Origin, names: Names, records: Records
) -> None:
    web = f"web.test:{origin.port}"
    number = port(records, web, max_connections=3)
    with contextlib.ExitStack() as several:
        held = [several.enter_context(shared.connect(number).result(DEADLINE)) for _ in range(3)]
        for connection in held:
            connection.send(f"CONNECT {web} HTTP/1.1\r\n\r\n").result(DEADLINE)
            assert connection.receive().result(DEADLINE).startswith(b"HTTP/1.1 200")
        with shared.connect(number).result(DEADLINE) as connection:
            assert everything(connection).startswith(b"HTTP/1.1 503 ")
        assert records.wait().reason == "3 connections are open already"
    records.wait(4)
    with shared.connect(number).result(DEADLINE) as connection:
        connection.send(asked(web)).result(DEADLINE)
        assert everything(connection).endswith(b"origin:/:")


FLOOD = """
import os, socket, sys
port = int(os.environ["http_proxy"].rpartition(":")[2])
refused = 0
for _ in range(int(sys.argv[1]) // 50):
    several = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
    for one in several:
        one.sendall(b"CONNECT other.test:25 HTTP/1.1\\r\\n\\r\\n")
    for one in several:
        refused += one.recv(65536).startswith(b"HTTP/1.1 403 ")
        one.close()
print(refused)
"""


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_many_connections_are_all_refused_and_recorded(
    count: int, shared: Sandbox, port: Callable[..., int], records: Records
) -> None:
    port(records, "web.test")
    done = shared.exec(["python3", "-c", FLOOD, str(count)], check=True).result(300)
    assert int(done.stdout) == count
    records.wait(count)
    assert {record.reason for record in records} == {"no rule allows other.test:25"}


BAD_ANSWERS = {
    "no HTTP": b"SSH-2.0-x\r\n\r\n",
    "nothing": b"",
    "bare line feeds": b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
    "another protocol": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
    "a head without an end": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000,
}


@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_an_answer_that_is_not_http_becomes_502(
    answer: bytes, shared: Sandbox, port: Callable[..., int], names: Names, records: Records
) -> None:
    with raw_server(answer) as server:
        number = port(records, f"web.test:{server}")
        with shared.connect(number).result(DEADLINE) as connection:
            connection.send(asked(f"web.test:{server}")).result(DEADLINE)
            assert everything(connection).startswith(b"HTTP/1.1 502 ")
        assert records.wait().reason


GOOD_ANSWERS = {
    "until the end": (b"HTTP/1.0 200 OK\r\n\r\nabc", b"abc"),
    "chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        b"1\r\na\r\n0\r\n\r\n",
    ),
    "continue": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
        b"x",
    ),
    "more than its length": (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxyz", b"\r\n\r\nx"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\nxyz", b"\r\n\r\n"),
}


@pytest.mark.parametrize("case", GOOD_ANSWERS.values(), ids=GOOD_ANSWERS)
def test_an_answer_ends_where_it_ends(
    case: tuple[bytes, bytes],
    shared: Sandbox,
    port: Callable[..., int],
    names: Names,
    records: Records,
) -> None:
    answer, end = case
    with raw_server(answer) as server:
        number = port(records, f"web.test:{server}")
        with shared.connect(number).result(DEADLINE) as connection:
            connection.send(asked(f"web.test:{server}")).result(DEADLINE)
            received = everything(connection)
    assert received.endswith(end), received
    assert b"\r\nConnection: close\r\n" in received


def test_a_server_that_is_gone_becomes_502(
    shared: Sandbox, port: Callable[..., int], names: Names, records: Records
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = f"web.test:{server.getsockname()[1]}"
    number = port(records, gone)
    for request in (asked(gone), f"CONNECT {gone} HTTP/1.1\r\n\r\n".encode()):
        with shared.connect(number).result(DEADLINE) as connection:
            connection.send(request).result(DEADLINE)
            assert everything(connection).startswith(b"HTTP/1.1 502 ")
    assert "cannot be reached at 127.0.0.1" in records.wait(2).reason


def test_a_log_that_raises_stops_nothing(
    shared: Sandbox,
    port: Callable[..., int],
    names: Names,
    origin: Origin,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(record: object) -> None:
        raise LookupError("the user's own error")

    web = f"web.test:{origin.port}"
    number = port(Records(), web, log=fails)
    with shared.connect(number).result(DEADLINE) as connection:
        connection.send(asked(web)).result(DEADLINE)
        assert everything(connection).endswith(b"origin:/:")
    shared.set_network("none").result(DEADLINE)
    assert "the user's own error" in caplog.text
