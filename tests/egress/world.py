"""Servers, names and sandboxes for the tests of egress."""

import contextlib
import http.server
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sandboxkit import Egress, EgressRecord, Sandbox
from tests.components import require_program
from tests.docker_here import require_docker

DEADLINE = 60.0
PROVIDERS = ("local", "docker")
NAMES = ("web.test", "a.web.test", "other.test", "api.test")


def provider_or_skip(name: str) -> str:
    """Return a provider's name, or skip the test if it cannot run here."""
    if name == "docker":
        require_docker()
    return name


class Origin:
    """A server of this side that keeps what it is asked: plain HTTP, or HTTP over TLS."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[tuple[str, str, Mapping[str, str], bytes]] = []
        self.connections: list[object] = []
        origin = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                length = self.headers.get("Content-Length")
                if self.headers.get("Transfer-Encoding") == "chunked":
                    body = self._chunks()
                else:
                    body = self.rfile.read(int(length)) if length else b""
                origin.requests.append((self.command, self.path, dict(self.headers), body))
                answer = b"origin:" + self.path.encode() + b":" + body
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer)

            def _chunks(self) -> bytes:
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body

            do_POST = do_PUT = do_HEAD = do_DELETE = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            def process_request(self, request: object, client_address: object) -> None:
                origin.connections.append(client_address)
                super().process_request(request, client_address)  # type: ignore[arg-type]  # as given

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that breaks off is what many tests try

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


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
        self.certificate = folder / "ca.pem"
        names = ",".join(f"DNS:{name}" for name in NAMES)
        key = folder / "key.pem"
        argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        argv += ["-subj", "/CN=tests", "-addext", f"subjectAltName={names}"]
        argv += ["-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run(argv, check=True, capture_output=True, timeout=60)
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(self.certificate, key)
        self.client = ssl.create_default_context(cafile=str(self.certificate))


class Names:
    """What names resolve to, in place of DNS, and how often each was looked up."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, list[list[str]]] = {name: [["127.0.0.1"]] for name in NAMES}
        self.asked: list[str] = []
        real = socket.getaddrinfo

        def look_up(host: str, port: int, *more: object, **options: object) -> list[object]:
            if host not in self.answers:
                if host.replace(".", "").isdigit() or ":" in host:
                    return list(real(host, port, *more, **options))  # type: ignore[arg-type]  # as given
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            self.asked.append(host)
            several = self.answers[host]
            answer = several.pop(0) if len(several) > 1 else several[0]
            return [
                (
                    socket.AF_INET6 if ":" in each else socket.AF_INET,
                    socket.SOCK_STREAM,
                    6,
                    "",
                    (each, port),
                )
                for each in answer
            ]

        patch.setattr(socket, "getaddrinfo", look_up)


def proxy_port(sandbox: Sandbox) -> int:
    """Return the port of the sandbox's proxy, as its commands see it."""
    done = sandbox.exec(["sh", "-c", "echo $http_proxy"], check=True).result(DEADLINE)
    return int(done.stdout.strip().rpartition(":")[2])


def egress(records: Records, *allow: str, **more: object) -> Egress:
    """Return an Egress that allows names at this machine's loopback."""
    options = {"private": ["127.0.0.1"], "log": records.add, **more}
    return Egress(allow=allow, **options)  # type: ignore[arg-type]  # options of many types


@contextlib.contextmanager
def opened(origin: Origin) -> Iterator[Origin]:
    """Close a server at the end."""
    try:
        yield origin
    finally:
        origin.close()
