"""A server of JSON on loopback, whose answers are those of a function."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[str, dict[str, Any]], tuple[int, object]]
"""Gets a request's path and its body, and returns the status and the body of the answer."""


def make(answer: Answer, port: int = 0) -> ThreadingHTTPServer:
    """A server that listens; 0 is any free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size) or b"{}")
            status, found = answer(self.path.partition("?")[0], body)
            data = json.dumps(found).encode()
            with contextlib.suppress(OSError):  # of one that has gone
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, format: str, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 256

    return Server(("127.0.0.1", port), Handler)


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Serve in a thread; gives the URL that ends in /v1."""
    with make(answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()
