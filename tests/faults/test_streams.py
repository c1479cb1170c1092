"""Bytes through the proxy: as they would pass without it, until it is told to break them."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from typing import Literal

import pytest

from sandboxkit import ConfigurationError
from tests.faults import (
    Drop,
    Fault,
    FaultProxy,
    Half,
    Late,
    Request,
    Reset,
    Stall,
)
from tests.faults.conftest import Peer, connect, whole

MEGABYTE = 1 << 20


def test_a_half_closed_end_stays_half_closed(peer: Peer) -> None:
    with FaultProxy(peer.url) as proxy, connect(proxy.url) as client:
        client.sendall(b"question")
        client.shutdown(socket.SHUT_WR)
        with peer.accept() as server:
            assert whole(server) == b"question"
            server.sendall(b"answer")
            time.sleep(0.05)  # the client's end has long passed; the answer must still
            server.sendall(b", all of it")
        assert whole(client) == b"answer, all of it"


def test_large_streams_pass_exactly_both_ways_at_once(peer: Peer) -> None:
    sent = os.urandom(8 * MEGABYTE)
    with FaultProxy(peer.url) as proxy, connect(proxy.url) as client, peer.accept() as server:

        def send(end: socket.socket) -> None:
            end.sendall(sent)
            end.shutdown(socket.SHUT_WR)

        senders = [threading.Thread(target=send, args=(end,)) for end in (client, server)]
        received: list[bytes] = []
        reader = threading.Thread(target=lambda: received.append(whole(server)))
        for thread in (*senders, reader):
            thread.start()
        assert whole(client) == sent
        for thread in (*senders, reader):
            thread.join()
        assert received == [sent]


def test_a_slow_reader_slows_the_writer(peer: Peer) -> None:
    with FaultProxy(peer.url) as proxy, connect(proxy.url) as client, peer.accept():
        client.settimeout(0.5)
        passed = 0
        with contextlib.suppress(TimeoutError):
            while passed < 64 * MEGABYTE:
                passed += client.send(bytes(MEGABYTE))
        assert passed < 16 * MEGABYTE  # what the kernel's buffers take


def test_a_stall_holds_everything_and_healing_lets_it_pass(peer: Peer) -> None:
    with FaultProxy(peer.url) as proxy, connect(proxy.url) as client, peer.accept() as server:
        client.sendall(b"before")
        assert server.recv(100) == b"before"
        proxy.stall()
        client.sendall(b"meanwhile")
        server.sendall(b"meanwhile")
        for end in (client, server):
            end.settimeout(0.1)
            with pytest.raises(TimeoutError):
                end.recv(1)
            end.settimeout(60)
        with connect(proxy.url) as late:
            late.sendall(b"late")
            proxy.heal()
            assert server.recv(100) == b"meanwhile"
            assert client.recv(100) == b"meanwhile"
            with peer.accept() as other:
                assert other.recv(100) == b"late"


def test_a_stall_may_be_of_one_direction(peer: Peer) -> None:
    with FaultProxy(peer.url) as proxy, connect(proxy.url) as client, peer.accept() as server:
        proxy.stall("answer")
        client.sendall(b"question")
        assert server.recv(100) == b"question"
        server.sendall(b"answer")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        proxy.resume()
        client.settimeout(60)
        assert client.recv(100) == b"answer"


def test_a_reset_breaks_what_is_open_and_nothing_later(peer: Peer) -> None:
    with FaultProxy(peer.url) as proxy, connect(proxy.url) as client, peer.accept() as server:
        client.sendall(b"x")
        assert server.recv(100) == b"x"
        proxy.reset()
        for end in (client, server):
            if peer.url.startswith("tcp"):
                with pytest.raises(ConnectionResetError):
                    end.recv(1)
            else:
                assert end.recv(1) == b""
        assert proxy.faults == {"reset()": 1}
        with connect(proxy.url) as again, peer.accept() as later:
            again.sendall(b"y")
            assert later.recv(100) == b"y"


def test_a_server_that_resets_resets_the_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with FaultProxy(url) as proxy, connect(proxy.url) as client:
            client.sendall(b"unread")
            server = listener.accept()[0]
            server.recv(1)
            server.close()  # with input that it has not read: the kernel resets it
            with pytest.raises(ConnectionResetError):
                whole(client)


class Script:
    """A plan that gives each connection the next fault, and remembers what it was asked."""

    def __init__(self, *faults: Fault | None) -> None:
        self._faults = iter(faults)
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> Fault | None:
        self.requests.append(request)
        return next(self._faults)


def test_half_an_answer_ends_there(peer: Peer) -> None:
    plan = Script(Half(3), None)
    with FaultProxy(peer.url, plan=plan) as proxy:
        with connect(proxy.url) as client, peer.accept() as server:
            client.sendall(b"question")
            assert server.recv(100) == b"question"
            server.sendall(b"answer")
            assert whole(client) == b"ans"
        with connect(proxy.url) as client, peer.accept() as server:
            client.sendall(b"question")
            assert server.recv(100) == b"question"
            server.sendall(b"answer")
            assert client.recv(100) == b"answer"
    assert plan.requests == [Request(0, ""), Request(1, "")]
    assert proxy.faults == {"Half": 1}


def test_a_planned_reset_passes_nothing(peer: Peer) -> None:
    with (
        FaultProxy(peer.url, plan=Script(Reset())) as proxy,
        connect(proxy.url) as client,
        peer.accept() as server,
    ):
        client.sendall(b"question")
        assert _broken(server)
        assert _broken(client)


@pytest.mark.parametrize("then", ["close", "reset"])
def test_a_dropped_answer_comes_after_the_work(peer: Peer, then: Literal["close", "reset"]) -> None:
    with (
        FaultProxy(peer.url, plan=Script(Drop(then))) as proxy,
        connect(proxy.url) as client,
        peer.accept() as server,
    ):
        client.sendall(b"question")
        assert server.recv(100) == b"question"
        server.sendall(b"answer")
        assert _broken(client)


def test_an_answer_may_be_dropped_in_silence(peer: Peer) -> None:
    with (
        FaultProxy(peer.url, plan=Script(Drop("stall"))) as proxy,
        connect(proxy.url) as client,
        peer.accept() as server,
    ):
        client.sendall(b"question")
        assert server.recv(100) == b"question"
        server.sendall(b"answer")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        proxy.heal()
        client.settimeout(60)
        assert _broken(client)


@pytest.mark.parametrize("fault", [Late(0.2), Stall("both", 0.2), Stall("request", 0.2)])
def test_a_late_request_passes_completely(peer: Peer, fault: Fault) -> None:
    with (
        FaultProxy(peer.url, plan=Script(fault)) as proxy,
        connect(proxy.url) as client,
        peer.accept() as server,
    ):
        started = time.monotonic()
        client.sendall(b"question")
        assert server.recv(100) == b"question"
        assert time.monotonic() - started >= 0.2
        server.sendall(b"answer")
        assert client.recv(100) == b"answer"


def test_a_server_that_is_not_there_breaks_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    with FaultProxy(url) as proxy, connect(proxy.url) as client:
        assert _broken(client)


def test_leaving_the_proxy_breaks_what_is_open(peer: Peer) -> None:
    before = threading.active_count()
    with FaultProxy(peer.url) as proxy:
        client, server = connect(proxy.url), peer.accept()
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        proxy.stall()
    with client, server:
        assert _broken(client)
        assert _broken(server)
    assert threading.active_count() <= before  # those of other tests may end meanwhile


async def _ask_async(url: str) -> str:
    async with FaultProxy(url) as proxy:
        return proxy.url


def test_it_is_an_async_context_manager(peer: Peer) -> None:
    assert asyncio.run(_ask_async(peer.url)).startswith(peer.url[:4])


def test_an_invalid_upstream_address_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'localhost:80' is no address"):
        FaultProxy("localhost:80")


def _broken(end: socket.socket) -> bool:
    """Whether it ends, or is reset, without another byte."""
    try:
        return end.recv(1) == b""
    except ConnectionResetError:
        return True
