"""Credentials: this side adds headers that the sandbox never has, for the requests that are allowed."""

import json

import pytest

from sandboxkit import Credential, Egress, Sandbox, Session
from tests.egress.test_attacks import Attack, connect, get, post
from tests.egress.world import DEADLINE, Authority, Names, Origin, Records, proxy_port

SECRET = "Bearer sk-7f3a9c51d2e84b60"
KEEPER = """
import sys, time, urllib.request
answer = urllib.request.urlopen("http://api.test.internal/v1/models?limit=3", b"question").read()
print(answer.decode(), flush=True)
sys.stdin.read()
"""
SCAN = """
import json, os, sys
needles = [each[::-1].encode() for each in json.loads(sys.argv[1])]
found, read = [[] for _ in needles], {"environ": 0, "mem": 0, "files": 0}
def look(where, data):
    for needle, places in zip(needles, found):
        if needle in data:
            places.append(where)
for pid in filter(str.isdecimal, os.listdir("/proc")):
    if int(pid) == os.getpid():
        continue
    for name in ("environ", "cmdline"):
        try:
            look(f"/proc/{pid}/{name}", open(f"/proc/{pid}/{name}", "rb").read())
            read["environ"] += 1
        except OSError:
            pass
    try:
        maps, memory = open(f"/proc/{pid}/maps"), open(f"/proc/{pid}/mem", "rb", 0)
    except OSError:
        continue
    for line in maps:
        span, access = line.split()[:2]
        first, last = (int(each, 16) for each in span.split("-"))
        if "r" in access and last - first < 1 << 28:
            try:
                memory.seek(first)
                look(f"/proc/{pid}/mem", memory.read(last - first))
                read["mem"] += 1
            except (OSError, ValueError, OverflowError):
                pass
for top in ("/tmp", "/workspace", "/run", "/dev/shm"):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if os.path.isfile(path):
                    look(path, open(path, "rb").read(1 << 24))
                    read["files"] += 1
            except OSError:
                pass
print(json.dumps([found, read]))
"""


def rules(secure: Origin, authority: Authority, records: Records, *allow: str) -> Egress:
    """Return an Egress with one credential for a server of this machine."""
    credential = Credential(
        f"api.test:{secure.port}",
        {"Authorization": SECRET, "X-Team": "red"},
        methods=["GET", "POST"],
        paths=["/v1/models", "/v1/files/*"],
    )
    return Egress(
        allow=allow,
        credentials=[credential],
        private=["127.0.0.1"],
        tls=authority.client,
        log=records.add,
    )


def test_the_headers_are_added_here_and_are_nowhere_inside(
    provider: str, names: Names, secure: Origin, authority: Authority, records: Records
) -> None:
    with (
        Session(provider, network=rules(secure, authority, records)) as session,
        session.sandbox() as sandbox,
    ):
        keeper = sandbox.exec(["python3", "-c", KEEPER], stdin=True)
        answer = next(iter(keeper.stdout.lines()))
        assert answer == "origin:/v1/models?limit=3:question"
        method, path, headers, body = secure.requests[0]
        assert (method, path, body) == ("POST", "/v1/models?limit=3", b"question")
        assert headers["Authorization"] == SECRET
        assert headers["X-Team"] == "red"
        assert headers["Host"] == f"api.test:{secure.port}"
        token = SECRET.partition(" ")[2]
        sandbox.write_file("/tmp/marker", "a marker to find").result(DEADLINE)
        needles = [each[::-1] for each in (token, "models?limit=3", "a marker to find")]
        done = sandbox.exec(["python3", "-c", SCAN, json.dumps(needles)], check=True)
        (secret, address, marker), read = json.loads(done.result(120).stdout)
        assert secret == []
        assert any("/mem" in place for place in address)  # so memory was read
        assert "/tmp/marker" in marker
        assert min(read.values()) > 0
        keeper.stdin.close().result(DEADLINE)
        keeper.result(DEADLINE)
        record = records.wait()
    assert (record.name, record.port, record.allowed) == ("api.test.internal", 80, True)
    assert (record.method, record.path, record.address) == ("POST", "/v1/models", "127.0.0.1")
    assert token not in record.json()


def test_the_sandboxs_own_header_is_replaced(
    names: Names, secure: Origin, authority: Authority, records: Records
) -> None:
    with Session("local", network=rules(secure, authority, records)) as session:
        sandbox = session.sandbox()
        with sandbox.connect(proxy_port(sandbox)).result(DEADLINE) as connection:
            asked = get(
                "http://API.test.Internal/v1/models",
                "authorization: mine",
                host="api.test.internal",
            )
            connection.send(asked).result(DEADLINE)
            assert connection.receive().result(DEADLINE).startswith(b"HTTP/1.1 200 ")
    _, _, headers, _ = secure.requests[0]
    assert [value for name, value in headers.items() if name.lower() == "authorization"] == [SECRET]


def test_the_authorities_of_this_machine_are_trusted_by_default(
    names: Names,
    secure: Origin,
    authority: Authority,
    records: Records,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Credential(f"api.test:{secure.port}", {"Authorization": SECRET})
    network = Egress(credentials=[api], private=["127.0.0.1"], log=records.add)
    code = "import urllib.request; urllib.request.urlopen('http://api.test.internal/')"
    with Session("local", network=network) as session:
        sandbox = session.sandbox()
        assert sandbox.exec(["python3", "-c", code]).result(DEADLINE).returncode == 1
        record = records.wait()
        assert "certificate verify failed" in record.reason
        assert not record.allowed
        assert secure.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        sandbox.set_network(network).result(DEADLINE)
        sandbox.exec(["python3", "-c", code], check=True).result(DEADLINE)
    assert len(secure.requests) == 1


def api(path: str, *headers: str) -> bytes:
    return get(f"http://api.test.internal{path}", *headers, host="api.test.internal")


NO_PATH = "the path"
ATTACKS = [
    Attack("another path", api("/v1/keys"), NO_PATH),
    Attack("a path that is longer", api("/v1/models/1"), NO_PATH),
    Attack("the folder above", api("/v1/files/../keys"), NO_PATH),
    Attack("this folder", api("/v1/files/./a"), NO_PATH),
    Attack("dots in percents", api("/v1/files/%2e%2e/keys"), NO_PATH),
    Attack("a slash in percents", api("/v1/files/..%2fkeys"), NO_PATH),
    Attack("percents in percents", api("/v1/files/%252e%252e/keys"), NO_PATH),
    Attack("a backslash", api("/v1/files/..\\keys"), NO_PATH),
    Attack("two slashes", api("/v1/files//etc"), NO_PATH),
    Attack("a parameter of the path", api("/v1/files/..;/keys"), NO_PATH),
    Attack("a fragment", api("/v1/models#/x"), "characters that no URL has", status=400),
    Attack("another method", api("/v1/models").replace(b"GET", b"DELETE"), "DELETE to port 80"),
    Attack("TRACE", api("/v1/models").replace(b"GET", b"TRACE"), "TRACE to port 80"),
    Attack(
        "another port",
        get("http://api.test.internal:443/v1/models", host="api.test.internal:443"),
        "to port 443",
    ),
    Attack("CONNECT", connect("api.test.internal:443"), "CONNECT to port 443"),
    Attack("CONNECT to port 80", connect("api.test.internal:80"), "CONNECT to port 80"),
    Attack(
        "another Host",
        get("http://api.test.internal/v1/models", host="other.test"),
        "Host is",
        status=400,
    ),
    Attack("the host itself", get("http://api.test/v1/models", host="api.test"), "no rule allows"),
    Attack("TLS to the host itself", connect("api.test:443"), "no rule allows"),
    Attack(
        "a name below",
        get("http://x.api.test.internal/v1/models", host="x.api.test.internal"),
        "no rule",
    ),
    Attack("internal alone", get("http://internal/v1/models", host="internal"), "no rule"),
    Attack(
        "internal twice",
        get("http://api.test.internal.internal/", host="api.test.internal.internal"),
        "no rule",
    ),
    Attack(
        "a name above",
        get("http://api.test.internal.other.test/", host="api.test.internal.other.test"),
        "no rule",
    ),
    Attack(
        "another name",
        get("http://other.test.internal/v1/models", host="other.test.internal"),
        "no rule",
    ),
    Attack(
        "both lengths",
        post("Content-Length: 4", "Transfer-Encoding: chunked", body=b"0\r\n\r\n")
        .replace(b"web.test:PORT/", b"api.test.internal/v1/models")
        .replace(b"web.test:PORT", b"api.test.internal"),
        "with Content-Length",
        status=400,
    ),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_everything_else_is_refused_and_recorded(
    attack: Attack,
    names: Names,
    secure: Origin,
    authority: Authority,
    records: Records,
    shared: Sandbox,
) -> None:
    shared.set_network(rules(secure, authority, records)).result(DEADLINE)
    with shared.connect(proxy_port(shared)).result(DEADLINE) as connection:
        connection.send(attack.sent).result(DEADLINE)
        answer = connection.receive().result(DEADLINE)
    assert answer.startswith(f"HTTP/1.1 {attack.status} ".encode()), answer
    record = records.wait()
    assert (record.allowed, record.sent, record.received) == (False, 0, 0)
    assert attack.reason in record.reason
    assert secure.requests == []
    assert SECRET not in record.json()
    assert SECRET.encode() not in answer
