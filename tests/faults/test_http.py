"""Faults of single HTTP requests, on connections that are kept and on ones that are upgraded."""

import doctest
import http.client
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import pytest

from tests import faults
from tests.faults import (
    Drop,
    FaultProxy,
    Half,
    HttpAnswer,
    Plan,
    Request,
    SeededPlan,
    too_many_requests,
)
from tests.faults.conftest import Web, connect, whole


@contextmanager
def client(web: Web, plan: Plan) -> Iterator[http.client.HTTPConnection]:
    """A connection through a proxy with this plan; it connects again when it has to."""
    with FaultProxy(web.url, plan=plan) as proxy:
        where = urlsplit(proxy.url)
        assert where.hostname is not None
        with closing(http.client.HTTPConnection(where.hostname, where.port, timeout=60)) as made:
            yield made


def ask(made: http.client.HTTPConnection, method: str, path: str, body: bytes = b"") -> bytes:
    made.request(method, path, body if method == "POST" else None)
    with made.getresponse() as answer:
        return answer.read()


def test_each_request_of_a_kept_connection_is_asked_about(web: Web) -> None:
    seen: list[Request] = []

    def plan(request: Request) -> None:
        seen.append(request)

    with client(web, plan) as made:
        assert ask(made, "GET", "/a") == b"x" * 1000
        # A body that arrives in many pieces, and looks like a request, is not another one.
        body = b"GET /not HTTP/1.1\r\n\r\n" * 100_000
        assert ask(made, "POST", "/b", body) == str(len(body)).encode()
        assert ask(made, "GET", "/c") == b"x" * 1000
    assert [(r.number, r.line) for r in seen] == [
        (0, "GET /a HTTP/1.1"),
        (1, "POST /b HTTP/1.1"),
        (2, "GET /c HTTP/1.1"),
    ]


@pytest.mark.parametrize("size", [0, 5_000_000])
def test_429_names_its_time_and_the_request_does_not_pass(web: Web, size: int) -> None:
    with client(web, lambda r: too_many_requests(2.5) if r.number == 0 else None) as made:
        made.connect()
        try:
            made.request("POST", "/work", bytes(size))
        except OSError:  # a server that answers early closes before it has read all
            assert size
        with made.getresponse() as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "2.5")
            answer.read()
        assert web.asked == []
        assert ask(made, "POST", "/work", b"abc") == b"3"


def test_500_has_the_planned_body(web: Web) -> None:
    with client(web, lambda r: HttpAnswer(500, b"{}")) as made:
        made.request("GET", "/")
        with made.getresponse() as answer:
            assert (answer.status, answer.read()) == (500, b"{}")
    assert web.asked == []


def test_the_work_of_a_dropped_answer_was_done(web: Web) -> None:
    with client(web, lambda r: Drop() if r.number == 1 else None) as made:
        assert ask(made, "POST", "/first", b"1") == b"1"
        with pytest.raises(http.client.RemoteDisconnected):
            ask(made, "POST", "/second", b"2")
        assert ask(made, "POST", "/third", b"3") == b"1"
    assert web.asked == ["POST /first", "POST /second", "POST /third"]


def test_half_an_answer_counts_the_bytes_of_this_answer(web: Web) -> None:
    with client(web, lambda r: Half(900) if r.number == 1 else None) as made:
        assert len(ask(made, "GET", "/")) == 1000
        with pytest.raises(http.client.IncompleteRead):
            ask(made, "GET", "/")


def test_an_upgraded_connection_is_asked_about_once(web: Web) -> None:
    seen: list[str] = []

    def plan(request: Request) -> None:
        seen.append(request.line)

    with FaultProxy(web.url, plan=plan) as proxy, connect(proxy.url) as end:
        end.sendall(b"GET /attach HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
        head = end.recv(65536)
        assert b" 101 " in head
        end.sendall(b"GET /inside HTTP/1.1\r\n\r\n")
        assert end.recv(1000).startswith(b"GET /inside")
        end.shutdown(1)
        assert whole(end) == b""
    assert seen == ["GET /attach HTTP/1.1"]


def test_a_seeded_plan_chooses_the_same_again() -> None:
    kinds = (Drop(), HttpAnswer(500), Half(1))

    def chosen(seed: int) -> list[object]:
        plan = SeededPlan(seed, kinds, share=0.3)
        return [plan(Request(number, "")) for number in range(1000)]

    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(2)
    assert 250 < sum(each is not None for each in chosen(1)) < 350


def test_the_example_of_the_docstring_runs(web: Web) -> None:
    names = {"FaultProxy": FaultProxy, "Drop": Drop, "urllib": urllib, "server": web}
    (example,) = doctest.DocTestFinder(recurse=False).find(
        faults.FaultProxy, "FaultProxy", globs=names
    )
    outcome = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(example)
    assert outcome == doctest.TestResults(failed=0, attempted=1)
