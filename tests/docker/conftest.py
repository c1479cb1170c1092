"""A real Docker daemon and the test image, or no test at all."""

import functools
import secrets
import subprocess
import time
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from sandboxkit.providers.docker import DockerProvider
from sandboxkit.types import SandboxInfo
from tests.docker.boxes import Box, Boxes
from tests.docker_here import require_docker
from tests.faults import FaultProxy
from tests.local.conftest import client as local_client

PROGRAMS: dict[str, str] = tomllib.loads(Path(__file__).with_name("programs.toml").read_text())
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


def docker(*arguments: str) -> list[str]:
    """The words that the command line prints."""
    command = ["docker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def containers(tag: str) -> list[str]:
    """Those that carry the tag, in whichever state."""
    return docker("ps", "--all", "--quiet", "--filter", f"label=test={tag}")


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
def bridge(daemon: None) -> Iterator[FaultProxy]:
    """The daemon's socket as a TCP port on loopback."""
    with FaultProxy(f"unix://{SOCKET}", listen="tcp") as proxy:
        yield proxy


async def listed(provider: DockerProvider, tag: str) -> list[SandboxInfo]:
    return [info async for info in provider.list({"test": tag})]


async def until_gone(provider: DockerProvider, tag: str) -> None:
    """Wait until nothing carries the tag."""
    with anyio.fail_after(60.0):
        while await listed(provider, tag):
            await anyio.sleep(0.05)


@pytest.fixture
async def boxes(tag: str, anyio_backend: str) -> AsyncIterator[Boxes[DockerProvider]]:
    """Sandboxes with the tag, and providers, which are removed in the end."""
    async with Boxes(DockerProvider, tags={"test": tag}) as boxes:
        yield boxes


@pytest.fixture
async def box(boxes: Boxes[DockerProvider]) -> Box:
    return await boxes.start()


client = functools.partial(local_client, given=PROGRAMS["client"])
"""Another process that runs code with a `provider`."""
