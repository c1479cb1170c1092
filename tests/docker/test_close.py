"""After `aclose()` no connection to the daemon is open, whatever is still referred to."""

import os
import socket
from contextlib import suppress

import anyio
import pytest

from sandboxkit.errors import SandboxNotFoundError
from sandboxkit.providers.docker import DockerProvider
from tests.docker.conftest import SOCKET
from tests.faults import FaultProxy

pytestmark = pytest.mark.anyio

MISSING = "sandboxkit-0123456789abcdef"


def connections(port: int) -> int:
    """How many of this process's sockets lead to the port."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as end:
                    found += end.family == socket.AF_INET and end.getpeername()[1] == port
    return found


async def test_a_kept_error_keeps_no_connection(daemon: None) -> None:
    with FaultProxy(f"unix://{SOCKET}", listen="tcp") as proxy:
        port = int(proxy.url.rpartition(":")[2])
        before = connections(port)
        provider = DockerProvider(base_url=proxy.url)
        with pytest.raises(SandboxNotFoundError) as kept:
            await provider.get(MISSING)
        assert connections(port) > before
        await provider.aclose()
        assert connections(port) == before
        assert kept.value.__cause__ is not None


async def test_a_call_after_close_closes_its_own_connection(daemon: None) -> None:
    with FaultProxy(f"unix://{SOCKET}", listen="tcp") as proxy:
        port = int(proxy.url.rpartition(":")[2])
        before = connections(port)
        provider = DockerProvider(base_url=proxy.url)

        async def ask() -> None:
            with pytest.raises(SandboxNotFoundError):
                await provider.get(MISSING)

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(ask)
            await provider.aclose()
        await ask()
        assert connections(port) == before
