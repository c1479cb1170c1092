"""A replica in this process behind real HTTP, with any provider."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn

from benchmarks.serve_strangers import request_of
from sandboxkit.integrations.serve import ServiceConfig, create_app
from sandboxkit.integrations.serve._server import TimedConnection

Serve = Callable[..., str]


@contextlib.contextmanager
def replica(**config: Any) -> Iterator[str]:
    """Serve in a thread and yield the service's URL."""
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(ServiceConfig(**config)),
            port=0,
            http=TimedConnection,
            log_level="warning",
            timeout_graceful_shutdown=5,
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def sending(url: str, request: bytes) -> Iterator[socket.socket]:
    """Send bytes on a connection of its own and yield it."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), 60) as connection:
        connection.sendall(request)
        yield connection


def whole(connection: socket.socket) -> str:
    """Read an answer to its end."""
    return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()


def asking(url: str, body: object) -> contextlib.AbstractContextManager[socket.socket]:
    """Make a request, and leave at the end of the context without its response."""
    line = f"POST {urlsplit(url).path}"
    return sending(url, request_of({"line": line, "text": json.dumps(body)}))


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start replicas that end with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda **config: stack.enter_context(replica(**config))


@pytest.fixture(scope="session")
def local() -> Iterator[str]:
    """The URL of one replica on the local provider, for tests that change nothing of it."""
    with replica(provider="local", pool=2) as url:
        yield url


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as client:
        yield client
