"""A daemon that is down, closed to us, hung, or no Docker daemon at all."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from sandboxkit.errors import ProviderUnavailableError
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.types import SandboxSpec

pytestmark = pytest.mark.anyio


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "docker.sock"))
        listener.listen(50)
        yield listener


@pytest.mark.parametrize("url", ["unix:///nonexistent/docker.sock", "tcp://127.0.0.1:1"])
async def test_a_daemon_that_is_down_is_named_with_how_to_start_it(url: str) -> None:
    provider = DockerProvider(base_url=url)
    with pytest.raises(ProviderUnavailableError) as caught:
        await provider.create(SandboxSpec())
    assert url in str(caught.value)
    assert "systemctl start docker" in str(caught.value)
    assert caught.value.retryable
    diagnosis = await provider.diagnose()
    assert not diagnosis.available
    assert "systemctl start docker" in diagnosis.remedy


async def test_a_closed_socket_names_the_group(listener: socket.socket) -> None:
    path = Path(listener.getsockname())
    path.chmod(0)
    program = (
        "import anyio, os, sys\n"
        "from sandboxkit.errors import AuthenticationError\n"
        "from sandboxkit.providers.docker import DockerProvider\n"
        "from sandboxkit.types import SandboxSpec\n"
        "provider = DockerProvider(base_url='unix://' + sys.argv[1])\n"
        "if os.getuid() == 0:\n"
        "    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    anyio.run(provider.create, SandboxSpec())\n"
        "except AuthenticationError as error:\n"
        "    print(error)\n"
    )
    # In its own process, which gives up root: nothing is closed to root.
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        env=os.environ | {"DOCKER_CONFIG": "/nonexistent"},
    )
    assert "usermod -aG docker" in done.stdout, done.stderr
    assert str(path) in done.stdout


def _accept_and_answer(listener: socket.socket, answer: bytes) -> None:
    with contextlib.ExitStack() as connections:
        while True:
            try:
                connection = connections.enter_context(listener.accept()[0])
            except OSError:
                return
            if answer:
                with contextlib.suppress(OSError):
                    connection.recv(65536)
                    connection.sendall(answer)
                connection.close()


@contextlib.contextmanager
def _answering(listener: socket.socket, answer: bytes) -> Iterator[str]:
    """A daemon that says only this; nothing at all if empty."""
    thread = threading.Thread(target=_accept_and_answer, args=(listener, answer))
    thread.start()
    try:
        yield f"unix://{listener.getsockname()}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


async def test_a_hung_daemon_is_given_up(listener: socket.socket) -> None:
    with _answering(listener, b"") as url:
        provider = DockerProvider(base_url=url, timeout=0.3)
        with anyio.fail_after(60), pytest.raises(ProviderUnavailableError, match="did not answer"):
            await provider.create(SandboxSpec())


async def test_a_call_to_a_hung_daemon_can_be_cancelled(listener: socket.socket) -> None:
    with _answering(listener, b"") as url:
        provider = DockerProvider(base_url=url, timeout=30)
        with anyio.move_on_after(0.2) as scope:
            await provider.get("sandboxkit-0123456789abcdef")
        assert scope.cancelled_caught


async def test_a_server_other_than_docker_is_unavailable(listener: socket.socket) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"
    with _answering(listener, answer) as url, pytest.raises(ProviderUnavailableError):
        await DockerProvider(base_url=url).create(SandboxSpec())
