"""OpenEnv's own server in this process, behind real HTTP on loopback."""

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from sandboxkit import Session

TAG = f"openenv-tests:{uuid.uuid4().hex}"


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:  # Any: an ASGI application
    """Serve in a thread and yield the URL."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def session() -> Iterator[Session]:
    with Session("local", tags=TAG) as session:
        yield session


async def live(session: Session) -> int:
    """Return how many sandboxes of the tests live."""
    return len(await session.list(TAG))
