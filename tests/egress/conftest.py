"""Servers, names, rules and sandboxes for the tests of egress."""

import contextlib
import http.server
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sandboxkit import Egress, EgressRecord, Sandbox, Session
from tests.components import require_program
from tests.data_here import beside
from tests.docker_here import require_docker

DEADLINE = 60.0
NAMES = ("web.test", "a.web.test", "other.test", "api.test")
PROGRAMS: dict[str, str] = beside(__file__, "programs.toml")
"""What the tests run inside, in Python."""
CASES: dict[str, Any] = beside(__file__, "cases.toml")


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def serving(
    handler: type[http.server.BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None
) -> Iterator[int]:
    """Serve at this machine's loopback: plain HTTP, or HTTP over TLS. Yield the port."""

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that breaks off is what many tests try

    server = Server(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Origin:
    """A server of this side that keeps what it is asked: method, path, headers and body."""

    def __init__(self) -> None:
        self.port = 0
        self.requests: list[tuple[str, str, Mapping[str, str], bytes]] = []
        self.hold = threading.Event()
        """No request is answered before it is set."""
        self.hold.set()


@contextlib.contextmanager
def opened(tls: ssl.SSLContext | None = None) -> Iterator[Origin]:
    origin = Origin()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            body = self._body()
            origin.requests.append((self.command, self.path, dict(self.headers), body))
            assert origin.hold.wait(DEADLINE)
            answer = b"origin:" + self.path.encode() + b":" + body
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        do_POST = do_GET

    with serving(Handler, tls) as origin.port:
        yield origin


class Records(list[EgressRecord]):
    """The audit records of a test, in the order in which connections ended."""

    def __init__(self) -> None:
        super().__init__()
        self._more = threading.Condition()

    def add(self, record: EgressRecord) -> None:
        """Take a record: the `log=` of an Egress."""
        with self._more:
            self.append(record)
            self._more.notify_all()

    def wait(self, count: int = 1) -> EgressRecord:
        """Wait until there are `count` records, and return the last one."""
        with self._more:
            assert self._more.wait_for(lambda: len(self) >= count, DEADLINE), list(self)
            return self[-1]


class Authority:
    """A certificate authority of the tests, with one certificate for all their names."""

    def __init__(self, folder: Path) -> None:
        require_program("openssl")
        self.certificate, key = folder / "ca.pem", folder / "key.pem"
        names = ",".join(f"DNS:{name}" for name in NAMES)
        command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=tests -addext subjectAltName={names}"
        argv = [*command.split(), "-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run(argv, check=True, capture_output=True, timeout=60)
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(self.certificate, key)
        self.client = ssl.create_default_context(cafile=str(self.certificate))


class Names:
    """What names resolve to, in place of DNS, and how often each was looked up."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, list[list[str]]] = {name: [["127.0.0.1"]] for name in NAMES}
        self.asked: list[str] = []
        self._real = socket.getaddrinfo
        patch.setattr(socket, "getaddrinfo", self._look_up)

    def _look_up(self, host: str, port: int, *more: Any, **options: Any) -> list[Any]:
        if host not in self.answers:
            if host.replace(".", "").isdigit() or ":" in host:
                return list(self._real(host, port, *more, **options))
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        self.asked.append(host)
        several = self.answers[host]
        answer = several.pop(0) if len(several) > 1 else several[0]
        family = {each: socket.AF_INET6 if ":" in each else socket.AF_INET for each in answer}
        return [(family[each], socket.SOCK_STREAM, 6, "", (each, port)) for each in answer]


@contextlib.contextmanager
def slow_names(seconds: float) -> Iterator[tuple[threading.Event, set[int]]]:
    """Look up names of slow.test for so long, or until an event; yield it, and the threads that do so."""
    gate, inside, real = threading.Event(), set[int](), socket.getaddrinfo

    def slow(host: str, *more: Any, **options: Any) -> list[Any]:
        if str(host).endswith(".slow.test"):
            inside.add(threading.get_ident())
            gate.wait(seconds)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return list(real(host, *more, **options))

    with mock.patch("socket.getaddrinfo", slow):
        yield gate, inside


def rules(records: Records, *allow: str, **more: Any) -> Egress:
    """Return an Egress that allows names at this machine's loopback."""
    return Egress(allow=allow, **{"private": ["127.0.0.1"], "log": records.add, **more})


class World:
    """The names, a plain server, the records of a test, and rules that let sandboxes reach it."""

    def __init__(self, names: Names, origin: Origin) -> None:
        self.names, self.origin, self.records = names, origin, Records()
        self.web = f"web.test:{origin.port}"
        self.url = f"http://{self.web}/"

    def rules(self, *allow: str, **more: Any) -> Egress:
        return rules(self.records, *(allow or (self.web,)), **more)


def proxy_port(sandbox: Sandbox) -> int:
    """Return the port of the sandbox's proxy, as its commands see it."""
    done = sandbox.exec(["sh", "-c", "echo $http_proxy"], check=True).result(DEADLINE)
    return int(done.stdout.strip().rpartition(":")[2])


def asked(name: str, path: str = "/", method: str = "GET", headers: str = "") -> str:
    """Return a request to the proxy, whose headers each end with CR LF."""
    return f"{method} http://{name}{path} HTTP/1.1\r\nHost: {name}\r\n{headers}\r\n"


def exchange(sandbox: Sandbox, sent: bytes | str, port: int = 0) -> bytes:
    """Send to the proxy, and return all that it sends until it ends."""
    with sandbox.connect(port or proxy_port(sandbox)).result(DEADLINE) as connection:
        if sent:
            connection.send(sent).result(DEADLINE)
        return b"".join(iter(lambda: connection.receive().result(DEADLINE), b""))


def out(sandbox: Sandbox, code: str, *args: str) -> str:
    """Run Python in a sandbox and return what it printed."""
    return sandbox.exec(["python3", "-c", code, *args], check=True).result(DEADLINE).stdout.strip()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The tests' own certificate authority."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with opened() as origin:
        yield World(Names(monkeypatch), origin)


@pytest.fixture
def secure(authority: Authority) -> Iterator[Origin]:
    """A server of HTTP over TLS at this machine's loopback."""
    with opened(authority.server) as server:
        yield server


@pytest.fixture(params=["local", "docker"])
def provider(request: pytest.FixtureRequest) -> str:
    """The name of each provider that can run here."""
    if request.param == "docker":
        require_docker()
    return str(request.param)


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    """A local sandbox whose network each test sets."""
    with Session("local") as session, session.sandbox() as sandbox:
        yield sandbox
