"""The limits of egress: time, bytes, connections, and servers that misbehave."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sandboxkit import Sandbox
from tests.egress.conftest import (
    CASES,
    DEADLINE,
    PROGRAMS,
    World,
    asked,
    exchange,
    proxy_port,
)


@pytest.fixture
def port(shared: Sandbox, world: World) -> Callable[..., int]:
    """Set the network of the sandbox, and return the port of its proxy."""

    def change(*allow: str, **limits: Any) -> int:
        shared.set_network(world.rules(*allow, **limits)).result(DEADLINE)
        return proxy_port(shared)

    return change


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


@pytest.mark.parametrize("sent", ["", "GET http://web.test/ HTTP/1.1\r\n", "GET"])
def test_a_slow_request_is_refused(
    sent: str, shared: Sandbox, port: Callable[..., int], world: World
) -> None:
    number = port("web.test", header_seconds=0.2)
    assert exchange(shared, sent, number).startswith(b"HTTP/1.1 408 ")
    assert "the head of the request took longer than 0.2 s" in world.records.wait().reason


def test_a_slow_first_message_of_tls_is_refused(
    shared: Sandbox, port: Callable[..., int], world: World
) -> None:
    reason = ""
    for turn, seconds in enumerate((0.2, 2.0, 20.0), 1):  # on a busy machine the head is late, too
        number = port(header_seconds=seconds)
        with shared.connect(number).result(DEADLINE) as connection:
            connection.send(f"CONNECT {world.web} HTTP/1.1\r\n\r\n").result(DEADLINE)
            answer = connection.receive().result(DEADLINE)
            if in_time := answer.startswith(b"HTTP/1.1 200"):
                connection.send(b"\x16\3\1").result(DEADLINE)
                with pytest.raises(ConnectionError):
                    connection.receive().result(DEADLINE)
        reason = world.records.wait(turn).reason
        if in_time:
            break
    assert "the first message of TLS took longer" in reason


def posted(world: World, length: int) -> str:
    """Return the head of a request with a body of this length."""
    return asked(world.web, method="POST", headers=f"Content-Length: {length}\r\n")


def test_an_idle_connection_is_cut(shared: Sandbox, port: Callable[..., int], world: World) -> None:
    number = port(idle_seconds=0.2)
    assert exchange(shared, posted(world, 10) + "12345", number).startswith(b"HTTP/1.1 408 ")
    record = world.records.wait()
    assert record.reason == "nothing passed for 0.2 s"
    assert record.allowed


def test_bytes_are_limited_in_all(shared: Sandbox, port: Callable[..., int], world: World) -> None:
    number = port(max_bytes=20_000)
    with contextlib.suppress(ConnectionError):
        answer = exchange(shared, posted(world, 15_000).encode() + bytes(15_000), number)
        assert len(answer) < 6_000
    assert world.records.wait().reason == "the limit max_bytes is reached"
    assert exchange(shared, asked(world.web), number).startswith(b"HTTP/1.1 403 ")
    assert "max_bytes=20000 is reached" in world.records.wait(2).reason


def test_connections_are_limited_and_further_ones_are_recorded(
    shared: Sandbox, port: Callable[..., int], world: World
) -> None:
    number = port(max_connections=3)
    with contextlib.ExitStack() as several:
        held = [several.enter_context(shared.connect(number).result(DEADLINE)) for _ in range(3)]
        for connection in held:
            connection.send(f"CONNECT {world.web} HTTP/1.1\r\n\r\n").result(DEADLINE)
            assert connection.receive().result(DEADLINE).startswith(b"HTTP/1.1 200")
        assert exchange(shared, "", number).startswith(b"HTTP/1.1 503 ")
        assert world.records.wait().reason == "3 connections are open already"
    world.records.wait(4)
    assert exchange(shared, asked(world.web), number).endswith(b"origin:/:")


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_many_connections_are_all_refused_and_recorded(
    count: int, shared: Sandbox, port: Callable[..., int], world: World
) -> None:
    port("web.test")
    flood = ["python3", "-c", PROGRAMS["flood"], str(count)]
    assert int(shared.exec(flood, check=True).result(300).stdout) == count
    world.records.wait(count)
    assert {record.reason for record in world.records} == {"no rule allows other.test:25"}


@pytest.mark.parametrize("case", [*CASES["bad_answers"], *CASES["good_answers"]])
def test_an_answer_ends_where_it_ends_and_one_that_is_not_http_becomes_502(
    case: str, shared: Sandbox, port: Callable[..., int], world: World
) -> None:
    good = CASES["good_answers"].get(case)
    answer, end = good or (CASES["bad_answers"][case], "")
    with raw_server(answer.replace("AAAA", "a" * 70_000).encode("latin-1")) as server:
        name = f"web.test:{server}"
        received = exchange(shared, asked(name), port(name))
    if good is None:
        assert received.startswith(b"HTTP/1.1 502 ")
        assert world.records.wait().reason
    else:
        assert received.endswith(end.encode()), received
        assert b"\r\nConnection: close\r\n" in received


def test_a_server_that_is_gone_becomes_502(
    shared: Sandbox, port: Callable[..., int], world: World
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = f"web.test:{server.getsockname()[1]}"
    number = port(gone)
    for request in (asked(gone), f"CONNECT {gone} HTTP/1.1\r\n\r\n"):
        assert exchange(shared, request, number).startswith(b"HTTP/1.1 502 ")
    assert "cannot be reached at 127.0.0.1" in world.records.wait(2).reason


def test_a_log_that_raises_stops_nothing(
    shared: Sandbox, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(record: object) -> None:
        raise LookupError("the user's own error")

    shared.set_network(world.rules(log=fails)).result(DEADLINE)
    assert exchange(shared, asked(world.web)).endswith(b"origin:/:")
    shared.set_network("none").result(DEADLINE)
    assert "the user's own error" in caplog.text
