"""The fault proxy: bytes and requests pass as they would without it, until it is told to break them."""

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from tests import faults

SECONDS = 60.0


@dataclass
class Peer:
    """A server on either kind of socket, with one connection at a time; the test is the server."""

    listener: socket.socket
    url: str

    def accept(self) -> socket.socket:
        """The next connection's end on the server's side."""
        accepted = self.listener.accept()[0]
        accepted.settimeout(SECONDS)
        return accepted


@pytest.fixture(params=["unix", "tcp"])
def peer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Peer]:
    is_tcp = request.param == "tcp"
    with socket.socket(socket.AF_INET if is_tcp else socket.AF_UNIX) as listener:
        path = str(tmp_path_factory.mktemp("peer") / "s")
        listener.bind(("127.0.0.1", 0) if is_tcp else path)
        listener.listen()
        listener.settimeout(SECONDS)
        where = f"tcp://127.0.0.1:{listener.getsockname()[1]}" if is_tcp else f"unix://{path}"
        yield Peer(listener, where)


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(SECONDS)
        client.connect(parts.path)
        return client
    return socket.create_connection((parts.hostname, parts.port), SECONDS)


@contextlib.contextmanager
def ends(
    peer: Peer, *planned: faults.Fault
) -> Iterator[tuple[faults.FaultProxy, socket.socket, socket.socket]]:
    """A proxy whose first connections meet these faults, and both ends of the first one."""
    left = iter(planned)
    with (
        faults.FaultProxy(peer.url, plan=lambda request: next(left, None)) as proxy,
        connect(proxy.url) as client,
        peer.accept() as server,
    ):
        yield proxy, client, server


def whole(end: socket.socket) -> bytes:
    """All up to the end of the stream, or to its reset."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := end.recv(1 << 16):
            data += piece
    return data


def silent(end: socket.socket) -> bool:
    """Whether nothing comes and the connection stays open."""
    end.settimeout(0.1)
    with pytest.raises(TimeoutError):
        end.recv(1)
    end.settimeout(SECONDS)
    return True


def test_a_stall_holds_everything_and_healing_lets_it_pass(peer: Peer) -> None:
    with ends(peer) as (proxy, client, server):
        client.sendall(b"before")
        assert server.recv(100) == b"before"
        proxy.stall()
        client.sendall(b"meanwhile")
        server.sendall(b"meanwhile")
        assert silent(client)
        assert silent(server)
        with connect(proxy.url) as late:
            late.sendall(b"late")
            proxy.heal()
            assert server.recv(100) == b"meanwhile"
            assert client.recv(100) == b"meanwhile"
            with peer.accept() as other:
                assert other.recv(100) == b"late"
        proxy.stall("answer")
        client.sendall(b"question")
        assert server.recv(100) == b"question"
        server.sendall(b"answer")
        assert silent(client)
        proxy.resume()
        assert client.recv(100) == b"answer"


def test_a_reset_breaks_what_is_open_and_nothing_later(peer: Peer) -> None:
    with ends(peer) as (proxy, client, server):
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


# The fault, and what the client gets of the answer; None where the server does not get the question.
FAULTS: list[tuple[faults.Fault, bytes | None]] = [
    (faults.Reset(), None),
    (faults.Half(3), b"ans"),
    (faults.Drop("close"), b""),
    (faults.Drop("reset"), b""),
    (faults.Late(0.2), b"answer"),
    (faults.Stall("both", 0.2), b"answer"),
    (faults.Stall("request", 0.2), b"answer"),
    (faults.Stall("answer", 0.2), b"answer"),
]


@pytest.mark.parametrize(("fault", "answer"), FAULTS, ids=repr)
def test_a_planned_fault_meets_one_exchange(
    peer: Peer, fault: faults.Fault, answer: bytes | None
) -> None:
    with ends(peer, fault) as (proxy, client, server):
        started = time.monotonic()
        client.sendall(b"question")
        if answer is None:
            assert whole(server) == b""
        else:
            assert server.recv(100) == b"question"
            server.sendall(b"answer")
            server.shutdown(socket.SHUT_WR)
        assert whole(client) == (answer or b"")
        assert answer != b"answer" or time.monotonic() - started >= 0.2
        with connect(proxy.url) as again, peer.accept() as other:
            again.sendall(b"question")
            assert other.recv(100) == b"question"
            other.sendall(b"answer")
            assert again.recv(100) == b"answer"
        assert proxy.faults == {type(fault).__name__: 1}
