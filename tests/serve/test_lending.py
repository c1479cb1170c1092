"""`Session("http://...")`: a service's sandboxes as if they were made here."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from sandboxkit import ConfigurationError, Operation, Sandbox, Session, errors
from sandboxkit.providers.local._state import StateDir
from sandboxkit.providers.service import ServiceProvider
from sandboxkit.testing.conformance._base import DEADLINE, token, until
from tests.data_here import beside
from tests.serve.conftest import Serve, sending
from tests.serve.graders import Mortal
from tests.service_here import Service, service

ALICE, BOB = "a" * 20, "b" * 20


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Service]:
    """A service with two clients, in a process of its own."""
    (tmp_path / "tokens").write_text(f"alice {ALICE} 2\nbob {BOB}\n")
    tag = f"lending:{token()}"
    with service("local", "--tokens", str(tmp_path / "tokens"), "--tag", tag) as running:
        running.tag = tag
        yield running


Lent = Callable[..., Session]


@pytest.fixture
def lent() -> Iterator[Lent]:
    """Open sessions of a service; they and their providers end with the test."""
    providers: list[ServiceProvider] = []

    def opened(url: str, secret: str) -> Session:
        providers.append(ServiceProvider(url, token=secret))
        return Session(providers[-1])

    yield opened
    for provider in providers:
        Operation(provider.aclose()).result(DEADLINE)


def tagged(tag: str) -> list[str]:
    """A service's sandboxes, as its machine sees them. Clients see those of all services there."""
    return [info.id for info in Sandbox.list(tag, provider="local").result(DEADLINE)]


def test_a_url_is_a_provider(serve: Serve) -> None:
    url = serve(provider="local", pool=0)
    with Session(url) as session:
        assert session.provider_name == "service"
        assert session.run(["echo", "far"]).result(DEADLINE).stdout == "far\n"


@pytest.mark.parametrize(("url", "message"), beside(__file__, "requests.toml")["wrong_addresses"])
def test_a_bad_address_is_refused_before_anything_happens(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        Session(ServiceProvider(url))
    assert "secret" not in str(caught.value)


def test_nobody_there_is_no_fault_of_the_caller() -> None:
    unavailable = pytest.raises(errors.ProviderUnavailableError, match="SANDBOXKIT_SERVICE_URL")
    with Session("http://127.0.0.1:9") as session, unavailable:
        session.run(["true"]).result(DEADLINE)


def test_another_server_is_told_apart(serve: Serve) -> None:
    url = serve(provider="local", pool=0) + "/elsewhere"
    refused = pytest.raises(ConfigurationError, match="the address of `sandboxkit serve`")
    with Session(url) as session, refused:
        session.run(["true"]).result(DEADLINE)


def test_tokens_quotas_and_owners_are_the_service_s(running: Service, lent: Lent) -> None:
    refused = pytest.raises(errors.AuthenticationError, match="SANDBOXKIT_SERVICE_TOKEN")
    with lent(running.url, "c" * 20) as session, refused as caught:
        session.run(["true"]).result(DEADLINE)
    assert "c" * 20 not in str(caught.value)
    with lent(running.url, ALICE) as hers, lent(running.url, BOB) as his:
        made = [hers.sandbox().start().result(DEADLINE) for _ in range(2)]
        with pytest.raises(errors.CapacityError, match="'alice' has 2 sandboxes, its quota"):
            hers.sandbox().start().result(DEADLINE)
        assert made[0].id is not None
        assert made[0].id not in [info.id for info in his.list().result(DEADLINE)]
        with pytest.raises(errors.SandboxNotFoundError):
            his.from_id(made[0].id).result(DEADLINE)
        with pytest.raises(errors.SandboxNotFoundError):
            Operation(his.provider.box(made[0].id).open_link()).result(DEADLINE)
        Operation(his.provider.box(made[0].id).delete()).result(DEADLINE)
        assert made[0].exec(["echo", "here"]).result(DEADLINE).stdout == "here\n"
    assert tagged(running.tag) == []


def test_a_lifetime_beyond_the_service_s_is_refused(serve: Serve) -> None:
    url = serve(provider="local", pool=0, lifetime=100)
    with Session(url, lifetime=50) as session:
        sandbox = session.sandbox().start().result(DEADLINE)
        with pytest.raises(ConfigurationError, match="lifetime=101"):
            sandbox.renew(101).result(DEADLINE)
        sandbox.renew(99).result(DEADLINE)
        with pytest.raises(ConfigurationError, match="lifetime=101"):
            session.sandbox(lifetime=101).start().result(DEADLINE)


def test_a_backend_without_an_agent_lends_none(serve: Serve, http: httpx.Client) -> None:
    url = serve(provider=Mortal(), pool=0)
    with Session(url) as session, pytest.raises(ConfigurationError, match="no agent"):
        session.sandbox().start().result(DEADLINE)
    assert http.get(f"{url}/v1/sandboxes").json() == []


def test_a_killed_client_leaves_nothing(serve: Serve) -> None:
    tag = f"lending:{token()}"
    url = serve(provider="local", pool=0, lease=5, tags=(tag,))
    command = [sys.executable, "-c", beside(__file__, "programs.toml")["client"], url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        assert len(tagged(tag)) == 2
        client.kill()
    until(lambda: tagged(tag) == [], "nothing is left", 120)


def test_a_client_that_never_comes_for_its_sandbox_leaves_nothing(
    serve: Serve, http: httpx.Client
) -> None:
    tag = f"lending:{token()}"
    url = serve(provider="local", pool=0, lease=1, tags=(tag,))
    assert http.post(f"{url}/v1/sandboxes", json={"owned": True}).status_code == 201
    until(lambda: tagged(tag) == [], "nothing is left", 60)


def test_an_idle_owner_keeps_its_sandbox(serve: Serve) -> None:
    url = serve(provider="local", pool=0, lease=5)
    with Session(url) as session:
        sandbox = session.sandbox().start().result(DEADLINE)
        time.sleep(7)  # beyond the lease, which is looked at each second
        assert sandbox.exec(["echo", "here"]).result(DEADLINE).stdout == "here\n"


def test_a_detached_sandbox_outlives_its_session(serve: Serve) -> None:
    url = serve(provider="local", pool=0, lease=1)
    with Session(url) as session:
        sandbox = session.sandbox(detach=True).start().result(DEADLINE)
        assert sandbox.id is not None
    time.sleep(4)  # beyond the lease
    with Session(url) as session:
        again = session.from_id(sandbox.id).result(DEADLINE)
        assert again.exec(["echo", "here"]).result(DEADLINE).stdout == "here\n"
        again.stop().result(DEADLINE)


def test_a_killed_service_has_no_outcome_and_leaves_nothing(running: Service, lent: Lent) -> None:
    session = lent(running.url, ALICE)
    sandbox = session.sandbox().start().result(DEADLINE)
    process = sandbox.exec(["sh", "-c", "echo ready; sleep 1000"])
    assert next(iter(process.stdout.lines())) == "ready"
    running.process.kill()
    error = process.exception(120)
    assert isinstance(error, errors.OutcomeUnknownError), repr(error)
    until(lambda: tagged(running.tag) == [], "its sandboxes are gone", 60)
    with pytest.raises(errors.ProviderUnavailableError):
        session.sandbox().start().result(120)
    with pytest.raises(ExceptionGroup, match="could not be stopped"):
        session.close().result(120)


def test_an_agent_that_dies_is_no_fault_of_the_command(running: Service, lent: Lent) -> None:
    with lent(running.url, ALICE) as session:
        sandbox = session.sandbox().start().result(DEADLINE)
        process = sandbox.exec(["sh", "-c", "echo ready; sleep 1000"])
        assert next(iter(process.stdout.lines())) == "ready"
        meta = StateDir().load(str(sandbox.id))
        assert meta is not None
        os.kill([*meta.processes][-1], signal.SIGKILL)
        error = process.exception(60)
        assert isinstance(error, errors.SandboxTerminatedError), repr(error)
        assert not error.by_command
        assert not error.out_of_memory


def test_another_replica_sends_the_owner_to_the_first(serve: Serve) -> None:
    first, second = (serve(provider="local", pool=0) for _ in range(2))
    with Session(first) as session, Session(second) as elsewhere:
        sandbox = session.sandbox().start().result(DEADLINE)
        assert sandbox.id is not None
        head = _upgrade(f"/v1/sandboxes/{sandbox.id}/link?owner=true")
        with _asking(second, head) as connection:
            answer = _read(connection)
        assert answer.startswith(b"HTTP/1.1 503"), answer
        assert b"session affinity" in answer
        other = elsewhere.from_id(sandbox.id).result(DEADLINE)
        assert other.exec(["echo", "both"]).result(DEADLINE).stdout == "both\n"


def _asking(url: str, head: str) -> contextlib.AbstractContextManager[socket.socket]:
    """Send the head of a request and a part of its body."""
    return sending(url, f"{head}\r\nHost: localhost\r\n\r\n{{".encode())


def _read(connection: socket.socket) -> bytes:
    answer = b""
    while b"}" not in answer and (piece := connection.recv(65536)):
        answer += piece
    return answer


def _upgrade(path: str) -> str:
    """The head of the request for a WebSocket."""
    key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
    return f"GET {path} HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}"


def test_a_token_is_checked_before_a_body_is_read(running: Service) -> None:
    headers = "Content-Type: application/json\r\nAuthorization: Bearer wrong"
    posts = [
        f"POST {path} HTTP/1.1\r\n{headers}\r\nContent-Length: 60000000"
        for path in ("/v1/grade", "/v1/run", "/run_code", "/v1/sandboxes", "/nowhere")
    ]
    for head in (*posts, _upgrade("/v1/sandboxes/any/link")):
        with _asking(running.url, head) as connection:  # the rest of the body never comes
            assert _read(connection).startswith(b"HTTP/1.1 401"), head


def test_links_to_a_sandbox_are_bounded(serve: Serve) -> None:
    url = serve(provider="local", pool=0)
    with Session(url) as session, contextlib.ExitStack() as stack:
        sandbox = session.sandbox().start().result(DEADLINE)
        head = _upgrade(f"/v1/sandboxes/{sandbox.id}/link")
        for status in [b"101"] * 63 + [b"429"]:  # beside the session's own
            connection = stack.enter_context(_asking(url, head))
            assert connection.recv(65536).startswith(b"HTTP/1.1 " + status)
        assert sandbox.exec(["echo", "here"]).result(DEADLINE).stdout == "here\n"
