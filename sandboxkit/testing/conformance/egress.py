"""Conformance tests for `network=Egress(...)`: this process's proxy, reached through a sandbox's port."""

import contextlib
import http.server
import threading
from collections.abc import Iterator

from sandboxkit import Egress, EgressRecord, Sandbox
from sandboxkit.testing.conformance._base import DEADLINE, Conformance

__all__ = ["EgressConformance"]

_GET = """
import sys, urllib.error, urllib.request
try:
    print(len(urllib.request.urlopen(sys.argv[1]).read()))
except urllib.error.HTTPError as error:
    print(error.code)
"""
_SIZE = 3 << 20


class _WebHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(bytes(_SIZE))

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def _web() -> Iterator[int]:
    """Serve HTTP at this machine's loopback, and yield the port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _WebHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(DEADLINE)


def _get(sandbox: Sandbox, url: str) -> int:
    done = sandbox.exec(["python3", "-c", _GET, url], check=True).result(DEADLINE)
    return int(done.stdout)


class EgressConformance(Conformance):
    """A sandbox without a network reaches exactly the allowed names."""

    def test_a_sandbox_reaches_the_names_that_are_allowed_in_each_phase(
        self, sandbox: Sandbox
    ) -> None:
        records: list[EgressRecord] = []
        with _web() as port:
            rules = Egress(
                [f"web.test:{port}"],
                private=["127.0.0.1"],
                hosts={"web.test": "127.0.0.1", "other.test": "127.0.0.1"},
                log=records.append,
            )
            url = f"http://web.test:{port}/"
            sandbox.set_network(rules).result(DEADLINE)
            assert _get(sandbox, url) == _SIZE
            assert _get(sandbox, f"http://other.test:{port}/") == 403
            sandbox.set_network("none").result(DEADLINE)
            assert _get(sandbox, url) == 403
            sandbox.set_network(rules).result(DEADLINE)
            assert _get(sandbox, url) == _SIZE
            sandbox.stop().result(DEADLINE)
        assert sorted((record.name, record.allowed) for record in records) == [
            ("other.test", False),
            ("web.test", False),
            ("web.test", True),
            ("web.test", True),
        ]
