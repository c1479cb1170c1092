"""A real HTTP server and a real byte server, for what the proxy does to their connections."""

import http.server
import socket
import threading
from collections.abc import Iterator

import pytest


class Web:
    """Counts what was asked, and answers with how much it was sent."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.url = ""


@pytest.fixture
def web() -> Iterator[Web]:
    """HTTP/1.1 with connections that are kept."""
    state = Web()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = len(self.rfile.read(int(self.headers["Content-Length"])))
            state.asked.append(f"{self.command} {self.path}")
            self._say(str(size).encode())

        def do_GET(self) -> None:
            state.asked.append(f"{self.command} {self.path}")
            if "upgrade" in self.headers:
                self.send_response(101)
                self.end_headers()
                self.close_connection = True
                while data := self.rfile.read1(1 << 16):
                    self.wfile.write(data)
                return
            self._say(b"x" * 1000)

        def _say(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


class Peer:
    """Accepts one connection at a time; the test is the server."""

    def __init__(self, listener: socket.socket, url: str) -> None:
        self._listener = listener
        self.url = url

    def accept(self) -> socket.socket:
        """The next connection's end on the server's side."""
        accepted = self._listener.accept()[0]
        accepted.settimeout(60)
        return accepted


@pytest.fixture(params=["unix", "tcp"])
def peer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Peer]:
    """A server on either kind of socket."""
    if request.param == "tcp":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(60)
            yield Peer(listener, f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        return
    path = tmp_path_factory.mktemp("peer") / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(60)
        yield Peer(listener, f"unix://{path}")


def connect(url: str) -> socket.socket:
    """A client's plain socket."""
    if url.startswith("unix://"):
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(60)
        client.connect(url.removeprefix("unix://"))
        return client
    host, port = url.rpartition("//")[2].split(":")
    return socket.create_connection((host, int(port)), 60)


def whole(end: socket.socket) -> bytes:
    """All up to the end of the stream."""
    parts = []
    while data := end.recv(1 << 16):
        parts.append(data)
    return b"".join(parts)
