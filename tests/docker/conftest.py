"""A real Docker daemon and the test image, or no test at all."""

import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

import anyio
import pytest

from sandboxkit.errors import SandboxError
from sandboxkit.provider import StreamName
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.types import Command, SandboxInfo, SandboxSpec
from tests.docker.tcp_bridge import TcpBridge
from tests.docker_here import require_docker

SOCKET = "/var/run/docker.sock"


@pytest.fixture(scope="session")
def daemon() -> None:
    """Docker and the image are there. Without them: skipped, or failed where CI requires them."""
    require_docker()


@pytest.fixture
async def provider(daemon: None, anyio_backend: str) -> AsyncIterator[DockerProvider]:
    provider = DockerProvider()
    yield provider
    await provider.aclose()


def containers(tag: str) -> list[str]:
    """Those that carry the tag, in whichever state."""
    return subprocess.run(
        ["docker", "ps", "--all", "--quiet", "--filter", f"label=test={tag}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()


@pytest.fixture
def tag(daemon: None) -> Iterator[str]:
    """A tag of this test's own; what carries it afterwards is removed and is a failure."""
    value = secrets.token_hex(8)
    yield value
    deadline = time.monotonic() + 60  # the daemon names a container for as long as it removes it
    while (left := containers(value)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        subprocess.run(["docker", "rm", "--force", *left], capture_output=True)
        pytest.fail(f"{len(left)} containers were left behind")


@pytest.fixture
def bridge(daemon: None) -> Iterator[TcpBridge]:
    """The daemon's socket as a TCP port on loopback."""
    with TcpBridge(SOCKET) as bridge:
        yield bridge


class Box:
    """One sandbox with a short way to run a command in it."""

    def __init__(self, provider: DockerProvider, sandbox_id: str) -> None:
        self.provider = provider
        self.id = sandbox_id

    async def run(self, *argv: str, user: str | None = None) -> tuple[int, str, str]:
        texts: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

        async def output(stream: StreamName, chunk: bytes) -> None:
            texts[stream] += chunk

        with anyio.fail_after(60):
            status = (
                await self.provider.exec(self.id, Command(argv=argv, user=user), output)
            ).status
        return status, texts["stdout"].decode(), texts["stderr"].decode()

    async def python(self, code: str) -> str:
        """Run Python in the sandbox and return what it printed; it must succeed."""
        status, out, err = await self.run("python", "-c", code)
        assert status == 0, err
        return out.strip()


async def listed(provider: DockerProvider, tag: str) -> list[SandboxInfo]:
    return [info async for info in provider.list({"test": tag})]


async def until_gone(provider: DockerProvider, tag: str, within: float = 60.0) -> None:
    """Wait until nothing carries the tag."""
    with anyio.fail_after(within):
        while await listed(provider, tag):
            await anyio.sleep(0.05)


@pytest.fixture
async def box(provider: DockerProvider, tag: str) -> AsyncIterator[Box]:
    sandbox_id = await provider.create(SandboxSpec(tags={"test": tag}))
    yield Box(provider, sandbox_id)
    await provider.delete(sandbox_id)


@pytest.fixture
async def strict_box(provider: DockerProvider, tag: str) -> AsyncIterator[Box]:
    spec = SandboxSpec(tags={"test": tag}, profile="strict", disk_mb=64)
    sandbox_id = await provider.create(spec)
    yield Box(provider, sandbox_id)
    await provider.delete(sandbox_id)


def client(code: str, *arguments: str) -> "subprocess.Popen[str]":
    """Another process that runs `code` with a `provider`; it inherits our environment."""
    program = (
        "import anyio, sys\n"
        "from sandboxkit.providers.docker import DockerProvider\n"
        "from sandboxkit.types import *\n"
        "async def main():\n"
        "    provider = DockerProvider()\n"
        + "".join(f"    {line}\n" for line in code.strip().splitlines())
        + "anyio.run(main)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


__all__ = ["Box", "SandboxError", "client", "listed", "until_gone"]
