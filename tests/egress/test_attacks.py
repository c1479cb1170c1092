"""Attacks on egress from inside a sandbox: each is refused, recorded, and reaches no server."""

import dataclasses
import ssl
from collections.abc import Iterator

import pytest

from sandboxkit import Sandbox, Session
from tests.egress.world import (
    DEADLINE,
    Names,
    Origin,
    Records,
    egress,
    opened,
    proxy_port,
)

CONNECTED = b"HTTP/1.1 200"


def hello(name: str | None) -> bytes:
    """Return a real ClientHello with this server name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def made_hello(*extensions: bytes, tail: bytes = b"") -> bytes:
    """Return a ClientHello of these extensions alone."""
    body = b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0"
    joined = b"".join(extensions)
    body += len(joined).to_bytes(2, "big") + joined + tail
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return b"\x16\3\1" + len(message).to_bytes(2, "big") + message


def names_extension(*names: bytes, kind: int = 0) -> bytes:
    """Return a server_name extension with these names."""
    several = b"".join(bytes([kind]) + len(each).to_bytes(2, "big") + each for each in names)
    content = len(several).to_bytes(2, "big") + several
    return b"\0\0" + len(content).to_bytes(2, "big") + content


def split(data: bytes) -> bytes:
    """Return a ClientHello as two records of TLS."""
    message = data[5:]
    pieces = (message[:60], message[60:])
    return b"".join(b"\x16\3\1" + len(each).to_bytes(2, "big") + each for each in pieces)


@dataclasses.dataclass(frozen=True)
class Attack:
    """What a program sends to the proxy, and the reason that the record gives."""

    name: str
    sent: bytes
    reason: str
    tls: bytes = b""
    """What it sends behind CONNECT."""
    status: int = 403


def get(target: str, *headers: str, host: str = "web.test:PORT", version: str = "1.1") -> bytes:
    lines = [f"GET {target} HTTP/{version}", *([f"Host: {host}"] if host else []), *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def url(name: str) -> bytes:
    return get(f"http://{name}/", host=name)


def post(*headers: str, body: bytes = b"") -> bytes:
    lines = ["POST http://web.test:PORT/ HTTP/1.1", "Host: web.test:PORT", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def connect(target: str, *headers: str) -> bytes:
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


WEB = b"CONNECT web.test:PORT HTTP/1.1\r\nHost: web.test:PORT\r\n\r\n"
SMUGGLED = b"GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n"
NOT_PUBLIC = "not public"
NO_NAME = "not a host name"
NO_RULE = "no rule allows"

# Names of the table that DNS answers with addresses that are not public, and are allowed by "*.bad.test".
BAD = {
    "loopback": ["127.0.0.2"],
    "this-host": ["0.0.0.0"],
    "ten": ["10.0.0.1"],
    "office": ["192.168.1.1"],
    "docker": ["172.17.0.1"],
    "metadata": ["169.254.169.254"],
    "nat": ["100.64.0.1"],
    "multicast": ["224.0.0.1"],
    "broadcast": ["255.255.255.255"],
    "reserved": ["240.0.0.1"],
    "loopback6": ["::1"],
    "unspecified6": ["::"],
    "link6": ["fe80::1"],
    "unique6": ["fd00::1"],
    "site6": ["fec0::1"],
    "multicast6": ["ff02::1"],
    "metadata6": ["fd00:ec2::254"],
    "mapped": ["::ffff:127.0.0.1"],
    "mapped-metadata": ["::ffff:169.254.169.254"],
    "compatible": ["::7f00:1"],
    "six-to-four": ["2002:7f00:1::"],
    "nat64": ["64:ff9b::7f00:1"],
    "nat64-local": ["64:ff9b:1::a00:1"],
    "teredo": ["2001:0:4136:e378:8000:63bf:80ff:fffe"],
    "one-of-two": ["93.184.215.14", "10.0.0.1"],
}

ATTACKS = [
    *(Attack(f"a name for {name}", url(f"{name}.bad.test"), NOT_PUBLIC) for name in BAD),
    Attack("TLS to a name for the metadata service", connect("metadata.bad.test:443"), NOT_PUBLIC),
    # Addresses in place of names.
    Attack("an address", url("127.0.0.1:PORT"), NO_NAME),
    Attack("an IPv6 address", url("[::1]:PORT"), NO_NAME),
    Attack("a mapped address", url("[::ffff:127.0.0.1]"), NO_NAME),
    Attack("a decimal address", url("2130706433"), NO_NAME),
    Attack("an octal address", url("0177.0.0.1"), NO_NAME),
    Attack("a hexadecimal address", url("0x7f.0.0.0x1"), NO_NAME),
    Attack("a whole hexadecimal address", url("0x7f000001"), NO_NAME),
    Attack("a short address", url("127.1"), NO_NAME),
    Attack("the metadata service", connect("169.254.169.254:80"), NO_NAME),
    Attack("an address with digits of another script", url("\xb9\xb2\xb3.0.0.1"), "first line"),
    # Names and ports that no rule allows.
    Attack("another name", url("other.test"), NO_RULE),
    Attack("a longer name", url("web.test.evil.test"), NO_RULE),
    Attack("a name with the allowed one at its end", url("evilweb.test:PORT"), NO_RULE),
    Attack("the name above a wildcard", url("bad.test"), NO_RULE),
    Attack("another port", url("web.test:22"), NO_RULE),
    Attack("CONNECT to the port of mail", connect("web.test:25"), NO_RULE),
    Attack("CONNECT to SSH below a wildcard", connect("ten.bad.test:22"), NO_RULE),
    Attack("port 0", connect("web.test:0"), "no valid port", status=400),
    Attack("a port that wraps around", connect("web.test:65979"), "no valid port", status=400),
    Attack("a port with a sign", connect("web.test:+443"), "no valid port", status=400),
    Attack("no port", connect("web.test"), "no valid port", status=400),
    Attack("a name with a dot at its end", url("web.test.:PORT"), NO_NAME),
    Attack(
        "a user before the name", get("http://web.test@other.test/", host="other.test"), NO_NAME
    ),
    Attack("a NUL in the name", get("http://web.test\0.other.test/"), "first line", status=400),
    Attack("a percent in the name", url("web%2etest"), NO_NAME),
    Attack("a zone", url("[fe80::1%25eth0]"), NO_NAME),
    Attack(
        "a name that does not resolve", url("nowhere.bad.test"), "cannot be resolved", status=502
    ),
    # Another Host than the target.
    Attack("another Host", get("http://web.test:PORT/", host="other.test"), "Host is", status=400),
    Attack(
        "Host with another port",
        get("http://web.test:PORT/", host="web.test"),
        "Host is",
        status=400,
    ),
    Attack("two Hosts", get("http://web.test:PORT/", "Host: other.test"), "2 Host", status=400),
    Attack("no Host", get("http://web.test:PORT/", host=""), "0 Host", status=400),
    Attack(
        "CONNECT with another Host",
        WEB.replace(b"Host: web", b"Host: other"),
        "Host is",
        status=400,
    ),
    # Requests that two parsers read in two ways.
    Attack(
        "both lengths",
        post("Content-Length: 4", "Transfer-Encoding: chunked", body=b"0\r\n\r\n" + SMUGGLED),
        "with Content-Length",
        status=400,
    ),
    Attack(
        "two lengths",
        post("Content-Length: 4", "Content-Length: 5", body=b"abcd"),
        "Content-Length",
        status=400,
    ),
    Attack(
        "one length twice",
        post("Content-Length: 4", "Content-Length: 4", body=b"abcd"),
        "Content-Length",
        status=400,
    ),
    Attack(
        "a list of lengths",
        post("Content-Length: 4, 5", body=b"abcd"),
        "Content-Length",
        status=400,
    ),
    Attack(
        "a length with a sign",
        post("Content-Length: +4", body=b"abcd"),
        "Content-Length",
        status=400,
    ),
    Attack(
        "a hexadecimal length",
        post("Content-Length: 0x4", body=b"abcd"),
        "Content-Length",
        status=400,
    ),
    Attack("a negative length", post("Content-Length: -1"), "Content-Length", status=400),
    Attack("another coding", post("Transfer-Encoding: xchunked"), "Transfer-Encoding", status=400),
    Attack(
        "two codings", post("Transfer-Encoding: gzip, chunked"), "Transfer-Encoding", status=400
    ),
    Attack(
        "chunked twice",
        post("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        "Transfer-Encoding",
        status=400,
    ),
    Attack(
        "chunks in HTTP/1.0",
        get("http://web.test:PORT/", "Transfer-Encoding: chunked", version="1.0"),
        "HTTP/1.0",
        status=400,
    ),
    Attack(
        "a space before the colon",
        post("Content-Length : 4", body=b"abcd"),
        "not a header",
        status=400,
    ),
    Attack(
        "a folded header", post("X: a", " Transfer-Encoding: chunked"), "not a header", status=400
    ),
    Attack("a header without a name", post(": x"), "not a header", status=400),
    Attack("a header without a colon", post("X"), "not a header", status=400),
    Attack(
        "bare line feeds", get("http://web.test:PORT/").replace(b"\r\n", b"\n"), "CR LF", status=400
    ),
    Attack("one bare line feed", get("http://web.test:PORT/", "X: a\nY: b"), "CR LF", status=400),
    Attack(
        "a bare carriage return", get("http://web.test:PORT/", "X: a\rY: b"), "CR LF", status=400
    ),
    Attack(
        "a NUL in a header", get("http://web.test:PORT/", "X: a\0b"), "not a header", status=400
    ),
    Attack("HTTP/0.9", b"GET http://web.test:PORT/\r\n\r\n", "first line", status=400),
    Attack("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "first line", status=400),
    Attack(
        "two spaces",
        b"GET  http://web.test:PORT/ HTTP/1.1\r\nHost: web.test:PORT\r\n\r\n",
        "first line",
        status=400,
    ),
    Attack("a path alone", get("/", host="web.test:PORT"), "use CONNECT", status=400),
    Attack("another scheme", get("ftp://web.test:PORT/"), "use CONNECT", status=400),
    Attack("https to the proxy", get("https://web.test:PORT/"), "use CONNECT", status=400),
    Attack(
        "a head that is too long",
        get("http://web.test:PORT/", "X: " + "a" * 20000),
        "longer than",
        status=431,
    ),
    Attack(
        "CONNECT with a body",
        connect("web.test:PORT", "Content-Length: 5"),
        "has a body",
        status=400,
    ),
    Attack("the proxy itself", url("127.0.0.1:PROXY"), NO_NAME),
    Attack("TLS to the proxy", b"\x16\3\1\0\5hello\r\n\r\n", "first line", status=400),
    # TLS for another server than CONNECT.
    Attack("TLS for another name", WEB, "TLS is for other.test", tls=hello("other.test")),
    Attack("TLS without a name", WEB, "names 0 servers", tls=hello(None)),
    Attack("TLS for a name below", WEB, "TLS is for a.web.test", tls=hello("a.web.test")),
    Attack("TLS in two records", WEB, "not whole in one record", tls=split(hello("web.test"))),
    Attack(
        "two names",
        WEB,
        "not one name",
        tls=made_hello(names_extension(b"web.test", b"other.test")),
    ),
    Attack(
        "two extensions",
        WEB,
        "names 2 servers",
        tls=made_hello(names_extension(b"web.test"), names_extension(b"other.test")),
    ),
    Attack(
        "a name of another kind",
        WEB,
        "not one name",
        tls=made_hello(names_extension(b"web.test", kind=1)),
    ),
    Attack(
        "a name with a NUL",
        WEB,
        "not one name",
        tls=made_hello(names_extension(b"web.test\0.other.test")),
    ),
    Attack(
        "an address as a name", WEB, "not one name", tls=made_hello(names_extension(b"127.0.0.1"))
    ),
    Attack(
        "bytes behind the extensions",
        WEB,
        "after its extensions",
        tls=made_hello(names_extension(b"web.test"), tail=b"x"),
    ),
    Attack("a hello that is cut", WEB, "not whole", tls=b"\x16\3\1\0\6\1\0\0\2\3\3"),
    Attack("another message of TLS", WEB, "not one ClientHello", tls=b"\x16\3\1\0\4\2\0\0\0"),
    Attack("no TLS", WEB, "not TLS", tls=b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n"),
    Attack("SSH", WEB, "not TLS", tls=b"SSH-2.0-OpenSSH_9.2\r\n"),
    Attack("TLS of version 2", WEB, "not TLS", tls=b"\x80\x2e\1\0\2\0\x15\0\0\0\x10"),
    Attack("an empty record of TLS", WEB, "0 bytes", tls=b"\x16\3\1\0\0hello"),
]


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[Origin, Records]]:
    """One server and one list of records for all attacks."""
    with opened(Origin()) as origin:
        yield origin, Records()


@pytest.fixture(scope="module")
def target(world: tuple[Origin, Records]) -> Iterator[tuple[Sandbox, int]]:
    """One sandbox for all attacks, and the port of its proxy, which runs on this side for each provider."""
    origin, records = world
    rules = egress(records, f"web.test:{origin.port}", "*.bad.test")
    with Session("local", network=rules) as session, session.sandbox() as sandbox:
        yield sandbox, proxy_port(sandbox)


def test_there_are_enough_attacks_and_each_has_its_own_name() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 40


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_is_refused_and_recorded(
    attack: Attack, target: tuple[Sandbox, int], world: tuple[Origin, Records], names: Names
) -> None:
    (sandbox, port), (origin, records) = target, world
    names.answers |= {f"{name}.bad.test": [answer] for name, answer in BAD.items()}
    del records[:], origin.requests[:]
    sent = attack.sent.replace(b"PORT", str(origin.port).encode())
    sent = sent.replace(b"PROXY", str(port).encode())
    with sandbox.connect(port).result(DEADLINE) as connection:
        connection.send(sent).result(DEADLINE)
        answer = connection.receive().result(DEADLINE)
        if attack.tls:
            assert answer.startswith(CONNECTED)
            connection.send(attack.tls).result(DEADLINE)
            with pytest.raises(ConnectionError):
                connection.receive().result(DEADLINE)
        else:
            status = 400 if attack.reason == "first line" else attack.status
            assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
            assert b"sandboxkit: " in answer
            # What a name resolves to is not told: it may be one of a private network.
            told = [each for several in BAD.values() for each in several if len(each) > 4]
            if attack.reason != NO_NAME:  # which quotes the program's own words
                assert not [each for each in told if each.encode() in answer]
    record = records.wait()
    assert (record.allowed, record.sent, record.received) == (False, 0, 0)
    assert attack.reason in record.reason
    assert record.sandbox == sandbox.id
    assert origin.requests == []
    assert len(records) == 1
