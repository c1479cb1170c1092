"""Connections that send no whole request end, and keep nobody else out."""

import time
from collections.abc import Iterator

import httpx
import pytest

from sandboxkit.integrations.serve import _server
from sandboxkit.integrations.serve._server import TimedConnection
from sandboxkit.testing import FakeProvider
from tests.serve.conftest import replica, sending, whole

HEAD = b"POST /v1/run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = b'{"code": "print(6 * 7)"}'
SECOND = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + HEAD
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with replica(provider=FakeProvider()) as url:
        yield url


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD, WHOLE, WHOLE + BODY[:5], SECOND])
def test_a_request_that_does_not_end_ends_its_connection(
    url: str, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    for name in ("_HEAD_SECONDS", "_BODY_SECONDS"):
        monkeypatch.setattr(_server, name, 0.5)
    with sending(url, sent) as connection:
        whole(connection)


def test_a_request_that_comes_in_pieces_is_answered(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_server, "_BODY_SECONDS", 2.0)
    with sending(url, WHOLE) as connection:
        for at in range(len(BODY)):
            connection.sendall(BODY[at : at + 1])
            time.sleep(0.1)
        assert connection.recv(65536).startswith(b"HTTP/1.1 ")


def test_the_connection_that_waited_longest_makes_room(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedConnection, "most_waiting", 2)
    with httpx.Client() as client, sending(url, b"GET") as oldest:
        assert client.get(f"{url}/healthz").status_code == 200
        with sending(url, b"GET"), sending(url, b"GET"):
            assert oldest.recv(1) == b""
            assert client.get(f"{url}/healthz").status_code == 200, "what has served stays open"
