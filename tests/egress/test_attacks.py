"""Credentials and attacks: this side adds headers that the sandbox never has; what is not allowed is refused and recorded."""

import json
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from sandboxkit import Credential, Sandbox, Session
from tests.data_here import beside
from tests.egress import conftest as egress
from tests.egress.conftest import DEADLINE, PROGRAMS, Authority, Origin, World, asked


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


def test_its_own_header_is_replaced(world: World, secure: Origin, authority: Authority) -> None:
    network = world.rules(credentials=[credential(secure)], tls=authority.client)
    mine = "authorization: mine\r\nX_TEAM: blue\r\n"
    request = asked("API.test.Internal", "/v1/models", headers=mine)
    request = request.replace("Host: API.test.Internal", "Host: api.test.internal")
    with Session("local", network=network) as session:
        assert egress.exchange(session.sandbox(), request).startswith(b"HTTP/1.1 200 ")
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


DATA: dict[str, dict[str, Any]] = beside(__file__, "attacks.toml")
PUBLIC = "not public"
ATTACKS = {f"a name for {each}": {"url": f"{each}.bad.test"} for each in DATA["not_public"]}
ATTACKS = {name: {**each, "reason": PUBLIC} for name, each in ATTACKS.items()} | DATA["attacks"]
CONNECT = "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n"
SECRET = "Bearer sk-7f3a9c51d2e84b60"


def sized(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


def hello(name: str) -> bytes:
    """Return a real ClientHello with this server name, or without any."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name or None).do_handshake()
    return outgoing.read()


def made_hello(extensions: list[list[str]], kind: int = 0, tail: str = "") -> bytes:
    """Return a ClientHello of server_name extensions alone, each with these names of this kind."""
    joined = b""
    for names in extensions:
        several = b"".join(bytes([kind]) + sized(each.encode()) for each in names)
        joined += b"\0\0" + sized(sized(several))
    body = b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0" + sized(joined) + tail.encode()
    return b"\x16\3\1" + sized(b"\1" + len(body).to_bytes(3, "big") + body)


def tls_of(attack: dict[str, Any]) -> bytes:
    """What is sent behind CONNECT, if anything is."""
    if "hello" in attack:
        data = hello(attack["hello"])
        pieces = b"".join(b"\x16\3\1" + sized(each) for each in (data[5:65], data[65:]))
        return pieces if "split" in attack else data
    if "extensions" in attack:
        return made_hello(attack["extensions"], attack.get("kind", 0), attack.get("tail", ""))
    return bytes(attack.get("tls", ""), "latin-1")


def sent_by(attack: dict[str, Any], port: int, proxy: int) -> bytes:
    if "url" in attack:
        text = asked(attack["url"])
    elif "path" in attack:
        text = asked("api.test.internal", attack["path"])
    else:
        text = attack.get("sent") or CONNECT.format(attack.get("connect", "web.test:PORT"))
    text = text.replace("PORT", str(port)).replace("PROXY", str(proxy))
    return text.replace("AAAA", "a" * 20000).encode("latin-1")


@pytest.fixture(scope="module")
def target() -> Iterator[tuple[Sandbox, int, World]]:
    """One sandbox for all attacks, and the port of its proxy, which runs on this side for each provider."""
    with pytest.MonkeyPatch.context() as patch, egress.opened() as origin:
        world = World(egress.Names(patch), origin)
        rules = world.rules(world.web, "*.bad.test")
        with Session("local", network=rules) as session, session.sandbox() as sandbox:
            yield sandbox, egress.proxy_port(sandbox), world


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_and_recorded(name: str, target: tuple[Sandbox, int, World]) -> None:
    attack, (sandbox, port, world) = ATTACKS[name], target
    addresses = DATA["not_public"]
    world.names.answers |= {f"{each}.bad.test": [answer] for each, answer in addresses.items()}
    del world.records[:], world.origin.requests[:]
    with sandbox.connect(port).result(DEADLINE) as connection:
        connection.send(sent_by(attack, world.origin.port, port)).result(DEADLINE)
        answer = connection.receive().result(DEADLINE)
        if tls := tls_of(attack):
            assert answer.startswith(b"HTTP/1.1 200")
            connection.send(tls).result(DEADLINE)
            with pytest.raises(ConnectionError):
                connection.receive().result(DEADLINE)
        else:
            assert answer.startswith(f"HTTP/1.1 {attack.get('status', 403)} ".encode()), answer
            assert b"sandboxkit: " in answer
            # What a name resolves to is not told: it may be one of a private network.
            told = [each for several in addresses.values() for each in several if len(each) > 4]
            if attack["reason"] != "not a host name":  # which quotes the program's own words
                assert not [each for each in told if each.encode() in answer]
    record = world.records.wait()
    assert (record.allowed, record.sent, record.received) == (False, 0, 0)
    assert attack["reason"] in record.reason
    assert record.sandbox == sandbox.id
    assert world.origin.requests == []
    assert len(world.records) == 1


@pytest.mark.parametrize("name", DATA["credentials"])
def test_what_a_credential_does_not_allow_is_refused_and_recorded(
    name: str, world: World, secure: Origin, authority: Authority, shared: Sandbox
) -> None:
    attack = DATA["credentials"][name]
    network = world.rules(credentials=[credential(secure)], tls=authority.client)
    shared.set_network(network).result(DEADLINE)
    with shared.connect(egress.proxy_port(shared)).result(DEADLINE) as connection:
        connection.send(sent_by(attack, 0, 0)).result(DEADLINE)
        answer = connection.receive().result(DEADLINE)
    assert answer.startswith(f"HTTP/1.1 {attack.get('status', 403)} ".encode()), answer
    record = world.records.wait()
    assert (record.allowed, record.sent, record.received) == (False, 0, 0)
    assert attack["reason"] in record.reason
    assert secure.requests == []
    assert SECRET not in record.json()
    assert SECRET.encode() not in answer


def credential(secure: Origin) -> Credential:
    """Return a credential for a server of this machine."""
    headers = {"Authorization": SECRET, "X-Team": "red"}
    paths = ["/v1/models", "/v1/files/*"]
    return Credential(f"api.test:{secure.port}", headers, methods=["GET", "POST"], paths=paths)
