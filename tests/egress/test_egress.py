"""Egress as its users have it: requests that are allowed, phases, limits, bad servers, and what a killed owner leaves."""

import contextlib
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from sandboxkit import ConfigurationError, Credential, Egress, PortError, Sandbox, Session
from sandboxkit.egress._proxy import addresses, is_own
from tests.core.test_ports import WithoutPorts
from tests.egress import conftest as egress
from tests.egress.conftest import CASES, DEADLINE, PROGRAMS, World, asked, exchange, out

GET = PROGRAMS["get"]


def failed(sandbox: Sandbox, code: str, *args: str) -> str:
    """Run Python that fails in a sandbox and return its last line."""
    done = sandbox.exec(["python3", "-c", code, *args]).result(DEADLINE)
    assert done.returncode == 1, done
    return done.stderr.strip().splitlines()[-1]


def test_allowed_requests_arrive_and_are_recorded(
    provider: str, world: World, secure: egress.Origin, authority: egress.Authority
) -> None:
    rules = world.rules(world.web, f"*.web.test:{secure.port}")
    files = {"/tmp/ca.pem": authority.certificate.read_bytes()}
    with Session(provider, network=rules, files=files) as session, session.sandbox() as sandbox:
        web = f"{world.url}path?key=1"
        assert out(sandbox, GET, web) == "origin:/path?key=1:"
        assert out(sandbox, GET, web, "body") == "origin:/path?key=1:body"
        chunks = f"200 close {len('origin:/path?key=1:') + 100008}"
        assert out(sandbox, PROGRAMS["post_chunks"], web) == chunks
        tls_url = f"https://a.web.test:{secure.port}/tls"
        assert out(sandbox, PROGRAMS["get_tls"], tls_url) == "origin:/tls:"
        assert "403" in failed(sandbox, GET, f"http://a.web.test:{world.origin.port}/")
        world.records.wait(5)
    first, tls = world.records[0], world.records[3]
    assert (first.method, first.name, first.port) == ("GET", "web.test", world.origin.port)
    assert (first.path, first.address, first.allowed) == ("/path", "127.0.0.1", True)
    assert first.sandbox == sandbox.id
    assert (tls.method, tls.name, tls.allowed, tls.reason) == ("CONNECT", "a.web.test", True, "")
    assert min(tls.sent, tls.received) > 500
    assert [record.allowed for record in world.records] == [True] * 4 + [False]


def test_a_name_is_looked_up_once_and_a_second_answer_is_never_used(world: World) -> None:
    world.names.answers["web.test"] = [["127.0.0.1"], ["127.0.0.2"]]
    with Session("local", network=world.rules()) as session:
        sandbox = session.sandbox()
        assert out(sandbox, GET, world.url) == "origin:/:"
        assert world.names.asked == ["web.test"]
        assert "403" in failed(sandbox, GET, world.url)
        assert "127.0.0.2, which is not public" in world.records.wait(2).reason
        assert len(world.origin.requests) == 1


def test_a_second_request_of_a_connection_is_not_sent(world: World) -> None:
    """Neither to the first server, nor past the rules."""
    with Session("local", network=world.rules()) as session, session.sandbox() as sandbox:
        for second in (asked(world.web, "/2"), "GET /2 HTTP/1.1\r\n\r\n"):
            answer = exchange(sandbox, asked(world.web, "/1") + second)
            assert answer.count(b"HTTP/1.1 ") == 1
            assert answer.endswith(b"origin:/1:")
    assert [path for _, path, _, _ in world.origin.requests] == ["/1", "/1"]


def test_headers_of_one_connection_are_not_passed_on(world: World) -> None:
    headers = "Proxy-Authorization: x\r\nConnection: X-One, keep-alive\r\nX-One: 1\r\nX-Two: 2\r\n"
    with Session("local", network=world.rules()) as session:
        exchange(session.sandbox(), asked(world.web, headers=f"{headers}Upgrade: h2c\r\n"))
    _, _, passed, _ = world.origin.requests[0]
    assert passed == {"Host": world.web, "X-Two": "2", "Connection": "close"}


def test_a_phase_without_network_cuts_connections_and_a_later_one_has_the_same_port(
    provider: str, world: World, secure: egress.Origin
) -> None:
    name = f"web.test:{secure.port}"
    rules = world.rules(world.web, name)
    with Session(provider) as session, session.sandbox() as sandbox:
        sandbox.set_network("none").result(DEADLINE)  # nothing to change
        assert out(sandbox, "import os; print('http_proxy' in os.environ)") == "False"
        sandbox.set_network(rules).result(DEADLINE)
        port = egress.proxy_port(sandbox)
        assert out(sandbox, GET, world.url) == "origin:/:"
        with sandbox.connect(port).result(DEADLINE) as tunnel:
            tunnel.send(f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n").result(DEADLINE)
            assert tunnel.receive().result(DEADLINE).startswith(b"HTTP/1.1 200")
            sandbox.set_network("none").result(DEADLINE)
            with pytest.raises(ConnectionError):
                tunnel.receive().result(DEADLINE)
        assert "the network was changed" in world.records.wait(2).reason
        assert "403" in failed(sandbox, GET, world.url)
        assert world.records.wait(3).reason == "the sandbox's network is 'none' now"
        sandbox.set_network(rules).result(DEADLINE)
        assert egress.proxy_port(sandbox) == port
        assert out(sandbox, GET, world.url) == "origin:/:"


def test_there_is_no_other_way_out(provider: str, world: World) -> None:
    with Session(provider, network=world.rules("*")) as session:
        lines = out(session.sandbox(), PROGRAMS["other_ways"]).splitlines()
    assert lines[-1] == "no name"
    assert len(lines) == 5  # each connect failed


def test_each_way_to_run_code_goes_through_the_proxy(world: World) -> None:
    code = PROGRAMS["status"]
    with Session("local", network=world.rules(), pool=1) as session:
        assert session.run(["python3", "-c", code]).result(DEADLINE).stdout == "403\n"
        assert session.run_python(code).result(DEADLINE).stdout == "403\n"
        with session.sandbox() as sandbox:
            with sandbox.python() as kernel:
                assert kernel.run(code).result(DEADLINE).outputs[0].text == "403\n"
            with sandbox.terminal() as terminal:
                shown = terminal.run(f"python3 -c '{code}'".replace('"', '\\"').replace("'", '"'))
                assert shown.result(DEADLINE).output == "403\n"
    assert world.records.wait(4)


def test_variables_of_the_user_stay(world: World) -> None:
    with Session("local", network=world.rules(), env={"no_proxy": "mine"}) as session:
        sandbox = session.sandbox()
        code = "import os; print(os.environ['no_proxy'], os.environ['https_proxy'])"
        env = {"https_proxy": "own"}
        done = sandbox.exec(["python3", "-c", code], env=env, check=True).result(DEADLINE)
        assert done.stdout == "mine own\n"
        code = "import os; print(os.environ['HTTP_PROXY'] == os.environ['http_proxy'])"
        assert out(sandbox, code) == "True"


def test_the_next_job_of_a_pooled_sandbox_has_no_egress(provider: str, world: World) -> None:
    with Session(provider, pool=1, profile="strict", reuse="reset") as session:
        with session.sandbox(network=world.rules()) as first:
            port = egress.proxy_port(first)
            assert out(first, GET, world.url) == "origin:/:"
        with session.sandbox() as second:
            # On local a connection that was used is left in TIME_WAIT, so the sandbox is replaced.
            assert second.id == first.id or provider == "local"
            code = "import os; print('http_proxy' in os.environ)"
            assert out(second, code) == "False"
            with pytest.raises(PortError):
                second.connect(port).result(DEADLINE)


def test_a_killed_owner_takes_the_way_out_with_it(provider: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        name, pipe = f"web.test:{server.getsockname()[1]}", subprocess.PIPE
        argv = [sys.executable, "-c", PROGRAMS["owner"], provider, name, str(tmp_path / "log")]
        with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"asked\n"
            server.settimeout(DEADLINE)
            connection, _ = server.accept()
            connection.settimeout(DEADLINE)
            assert connection.recv(65536).startswith(b"GET / HTTP/1.1\r\n")
            owner.send_signal(signal.SIGKILL)
            owner.wait(DEADLINE)
            assert connection.recv(1) == b""
            connection.close()
        server.settimeout(0.5)
        with pytest.raises(TimeoutError):
            server.accept()


def test_the_log_is_a_file_of_json(world: World, tmp_path: Path) -> None:
    log = tmp_path / "egress.jsonl"
    with Session("local", network=world.rules(log=log)) as session, session.sandbox() as sandbox:
        out(sandbox, GET, f"{world.url}x")
        failed(sandbox, GET, "http://other.test/")
    allowed, refused = map(json.loads, log.read_text().splitlines())
    assert (allowed["name"], allowed["allowed"], allowed["reason"]) == ("web.test", True, "")
    assert (refused["name"], refused["allowed"]) == ("other.test", False)
    assert refused["reason"] == "no rule allows other.test:80"


@pytest.mark.parametrize("name", ["missing/log", "a pipe that nobody reads"])
def test_a_log_that_cannot_be_opened_ends_the_start(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "a pipe that nobody reads")
    rules = Egress(allow=["web.test"], log=tmp_path / name)
    with Session("local", network=rules) as session:
        sandbox = session.sandbox()
        with pytest.raises(OSError, match="No such"):
            sandbox.start().result(DEADLINE)
        assert sandbox.id is None


@pytest.mark.anyio
async def test_an_answer_that_is_checked_is_the_one_that_is_dialled(world: World) -> None:
    world.names.answers["web.test"] = [["1.1.1.1"], ["169.254.169.254"]]
    assert await addresses("a sandbox", world.rules("web.test"), "web.test", 443) == ["1.1.1.1"]


def test_this_machines_own_addresses_are_known() -> None:
    assert is_own(ipaddress.ip_address("127.0.0.1"))
    assert not is_own(ipaddress.ip_address("93.184.215.14"))


def test_a_provider_without_ports_refuses_egress_before_the_start() -> None:
    rules = Egress(allow=["web.test"])
    with Session(WithoutPorts()) as session:
        with pytest.raises(ConfigurationError, match="'without' cannot listen"):
            session.sandbox(network=rules)
        with pytest.raises(ConfigurationError, match="'without' cannot listen"):
            session.sandbox().set_network(rules)


def test_a_network_that_cannot_be_set_is_refused() -> None:
    with Session("local") as session:
        known = session.sandbox().start().result(DEADLINE)
        found = session.from_id(str(known.id)).result(DEADLINE)
        calls: dict[str, Callable[[], object]] = {
            "cannot be cut off": lambda: session.sandbox(network="internet").set_network("none"),
            "network='internet'": lambda: known.set_network("internet"),
            "reached by its id": lambda: found.set_network("none"),
            "with a command": lambda: session.sandbox(network=Egress(), command=["true"]),
        }
        for named, call in calls.items():
            with pytest.raises(ConfigurationError, match=named):
                call()


@pytest.mark.parametrize(("name", "value"), CASES["rules"])
def test_a_bad_rule_is_refused_and_named(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Egress(**{name: value})  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("options", CASES["credentials"], ids=str)
def test_a_bad_credential_is_refused_and_its_value_not_shown(options: dict[str, object]) -> None:
    good: dict[str, object] = {"host": "api.test", "headers": {"Authorization": "SECRET"}}
    with pytest.raises(ConfigurationError) as caught:
        Credential(**{**good, **options})  # type: ignore[arg-type]  # wrong on purpose
    assert "SECRET" not in str(caught.value)
    assert "SECRET" not in repr(Credential(**good))  # type: ignore[arg-type]  # as above


Port: TypeAlias = Callable[..., int]


@pytest.fixture
def port(shared: Sandbox, world: World) -> Port:
    """Set the network of the sandbox, and return the port of its proxy."""

    def change(*allow: str, **limits: Any) -> int:
        shared.set_network(world.rules(*allow, **limits)).result(DEADLINE)
        return egress.proxy_port(shared)

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
def test_a_slow_request_is_refused(sent: str, shared: Sandbox, port: Port, world: World) -> None:
    number = port("web.test", header_seconds=0.2)
    assert exchange(shared, sent, number).startswith(b"HTTP/1.1 408 ")
    assert "the head of the request took longer than 0.2 s" in world.records.wait().reason


def test_a_slow_message_of_tls_is_refused(shared: Sandbox, port: Port, world: World) -> None:
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
    return asked(world.web, method="POST", headers=f"Content-Length: {length}\r\n")


def test_an_idle_connection_is_cut(shared: Sandbox, port: Port, world: World) -> None:
    number = port(idle_seconds=0.2)
    assert exchange(shared, posted(world, 10) + "12345", number).startswith(b"HTTP/1.1 408 ")
    record = world.records.wait()
    assert record.reason == "nothing passed for 0.2 s"
    assert record.allowed


def test_bytes_are_limited_in_all(shared: Sandbox, port: Port, world: World) -> None:
    number = port(max_bytes=20_000)
    with contextlib.suppress(ConnectionError):
        answer = exchange(shared, posted(world, 15_000).encode() + bytes(15_000), number)
        assert len(answer) < 6_000
    assert world.records.wait().reason == "the limit max_bytes is reached"
    assert exchange(shared, asked(world.web), number).startswith(b"HTTP/1.1 403 ")
    assert "max_bytes=20000 is reached" in world.records.wait(2).reason


def test_connections_are_limited(shared: Sandbox, port: Port, world: World) -> None:
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
def test_a_flood_is_refused(count: int, shared: Sandbox, port: Port, world: World) -> None:
    port("web.test")
    flood = ["python3", "-c", PROGRAMS["flood"], str(count)]
    assert int(shared.exec(flood, check=True).result(300).stdout) == count
    world.records.wait(count)
    assert {record.reason for record in world.records} == {"no rule allows other.test:25"}


@pytest.mark.parametrize("case", [*CASES["bad_answers"], *CASES["good_answers"]])
def test_an_answer_ends_where_it_ends_and_one_that_is_not_http_becomes_502(
    case: str, shared: Sandbox, port: Port, world: World
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


def test_a_server_that_is_gone_becomes_502(shared: Sandbox, port: Port, world: World) -> None:
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
