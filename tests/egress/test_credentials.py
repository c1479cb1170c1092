"""Credentials: this side adds headers that the sandbox never has, for the requests that are allowed."""

import json

import pytest

from sandboxkit import Credential, Session
from tests.egress.conftest import DEADLINE, PROGRAMS, Authority, Origin, World, asked, exchange
from tests.egress.test_attacks import SECRET, credential


def test_the_headers_are_added_here_and_are_nowhere_inside(
    provider: str, world: World, secure: Origin, authority: Authority
) -> None:
    network = world.rules(credentials=[credential(secure)], tls=authority.client)
    with Session(provider, network=network) as session, session.sandbox() as sandbox:
        keeper = sandbox.exec(["python3", "-c", PROGRAMS["keeper"]], stdin=True)
        assert next(iter(keeper.stdout.lines())) == "origin:/v1/models?limit=3:question"
        method, path, headers, body = secure.requests[0]
        assert (method, path, body) == ("POST", "/v1/models?limit=3", b"question")
        assert headers["Authorization"] == SECRET
        assert headers["X-Team"] == "red"
        assert headers["Host"] == f"api.test:{secure.port}"
        token = SECRET.partition(" ")[2]
        sandbox.write_file("/tmp/marker", "a marker to find").result(DEADLINE)
        needles = [each[::-1] for each in (token, "models?limit=3", "a marker to find")]
        scan = ["python3", "-c", PROGRAMS["scan"], json.dumps(needles)]
        (secret, address, marker), read = json.loads(
            sandbox.exec(scan, check=True).result(120).stdout
        )
        assert secret == []
        assert any("/mem" in place for place in address)  # so memory was read
        assert "/tmp/marker" in marker
        assert min(read.values()) > 0
        keeper.stdin.close().result(DEADLINE)
        keeper.result(DEADLINE)
        record = world.records.wait()
    assert (record.name, record.port, record.allowed) == ("api.test.internal", 80, True)
    assert (record.method, record.path, record.address) == ("POST", "/v1/models", "127.0.0.1")
    assert token not in record.json()


def test_the_sandboxs_own_header_is_replaced(
    world: World, secure: Origin, authority: Authority
) -> None:
    network = world.rules(credentials=[credential(secure)], tls=authority.client)
    request = asked(
        "API.test.Internal",
        "/v1/models",
        headers="authorization: mine\r\nX_TEAM: blue\r\nContent_Length: 5\r\n",
    )
    request = request.replace("Host: API.test.Internal", "Host: api.test.internal")
    with Session("local", network=network) as session:
        assert exchange(session.sandbox(), request).startswith(b"HTTP/1.1 200 ")
    _, _, headers, _ = secure.requests[0]
    assert [value for name, value in headers.items() if name.lower() == "authorization"] == [SECRET]
    assert not [name for name in headers if "_" in name]


def test_the_authorities_of_this_machine_are_trusted_by_default(
    world: World, secure: Origin, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Credential(f"api.test:{secure.port}", {"Authorization": SECRET})
    network = world.rules(credentials=[api])
    code = "import urllib.request; urllib.request.urlopen('http://api.test.internal/')"
    with Session("local", network=network) as session:
        sandbox = session.sandbox()
        assert sandbox.exec(["python3", "-c", code]).result(DEADLINE).returncode == 1
        record = world.records.wait()
        assert "certificate verify failed" in record.reason
        assert not record.allowed
        assert secure.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        sandbox.set_network(network).result(DEADLINE)
        sandbox.exec(["python3", "-c", code], check=True).result(DEADLINE)
    assert len(secure.requests) == 1
