"""Without a network: a network namespace of its own, its loopback, and the names for that."""

import json
import os
import re
import subprocess
from dataclasses import replace

import anyio
import pytest

from sandboxkit.providers.docker import DockerProvider
from sandboxkit.providers.docker._loopback import HOSTS
from sandboxkit.types import SandboxSpec
from tests.docker.conftest import SOCKET, Box
from tests.faults import Fault, FaultProxy, HttpAnswer, Request

pytestmark = pytest.mark.anyio

# One spec for each way in which a sandbox comes by its /etc/hosts.
SPECS = {
    "root": SandboxSpec(),
    "user": SandboxSpec(user="sandbox"),
    "service": SandboxSpec(command=("sleep", "600")),
    "strict": SandboxSpec(profile="strict"),
}
LOOK = r"""
import json, os, socket
heard = []
with socket.create_server(("127.0.0.1", 0)) as server:
    with socket.create_connection(("localhost", server.getsockname()[1]), 60) as client:
        heard.append(server.accept()[1][0])
try:
    with open("/etc/hosts", "a") as hosts:
        hosts.write("127.0.0.1\tanother\n")
    heard.append(socket.gethostbyname("another"))
except OSError as error:
    heard.append(type(error).__name__)
print(json.dumps([os.readlink("/proc/self/ns/net"), sorted(os.listdir("/sys/class/net")), heard]))
"""


def by_the_daemon() -> bytes:
    """The /etc/hosts that the daemon writes for a container without a network."""
    image = os.environ["SANDBOXKIT_DOCKER_IMAGE"]
    run = ["docker", "run", "--rm", "--network=none", "--entrypoint=cat", image, "/etc/hosts"]
    return subprocess.run(run, check=True, capture_output=True).stdout


async def look(provider: DockerProvider, tag: str, name: str) -> tuple[str, list[str], list[str]]:
    """Its network namespace and interfaces, who was heard by the name, and a new name's address."""
    sandbox_id = await provider.create(replace(SPECS[name], tags={"test": tag}))
    try:
        box = Box(provider, sandbox_id)
        assert (await provider.read_file(sandbox_id, "/etc/hosts", max_bytes=1000)) == HOSTS
        network, interfaces, output = json.loads(await box.python(LOOK))
        return network, interfaces, output
    finally:
        await provider.delete(sandbox_id)


async def test_each_sandbox_has_its_own_loopback_and_names(
    provider: DockerProvider, tag: str
) -> None:
    assert by_the_daemon() == HOSTS
    found: dict[str, tuple[str, list[str], list[str]]] = {}

    async def one(name: str) -> None:
        found[name] = await look(provider, tag, name)

    async with anyio.create_task_group() as tasks:
        for name in SPECS:
            tasks.start_soon(one, name)
    assert {name: output[1:] for name, output in found.items()} == {
        "root": (["lo"], ["127.0.0.1", "127.0.0.1"]),
        "user": (["lo"], ["127.0.0.1", "PermissionError"]),
        "service": (["lo"], ["127.0.0.1", "127.0.0.1"]),
        "strict": (["lo"], ["127.0.0.1", "PermissionError"]),
    }
    assert os.readlink("/proc/self/ns/net") not in [output[0] for output in found.values()]


async def test_concurrent_sandboxes_share_no_network_namespace(
    provider: DockerProvider, tag: str
) -> None:
    """So neither reaches the other's loopback or abstract sockets, nor the machine's."""
    spec = SandboxSpec(tags={"test": tag})
    ids = [await provider.create(spec) for _ in range(2)]
    try:
        read = "import os; print(os.readlink('/proc/self/ns/net'))"
        networks = [await Box(provider, sandbox_id).python(read) for sandbox_id in ids]
        assert len({*networks, os.readlink("/proc/self/ns/net")}) == 3
    finally:
        for sandbox_id in ids:
            await provider.delete(sandbox_id)


async def test_a_daemon_that_mounts_no_part_of_a_volume_makes_the_names_itself(
    daemon: None, tag: str
) -> None:
    provider = DockerProvider()
    hosts = (await provider._agent.ensure(os.environ["SANDBOXKIT_DOCKER_IMAGE"])).hosts
    await provider.aclose()
    refused = json.dumps({"message": f"mounts denied: the path {hosts} is not shared"}).encode()
    creations: list[str] = []

    def plan(request: Request) -> Fault | None:
        if not re.match("POST .*/containers/create.name=sandboxkit-[0-9a-f]{16}", request.line):
            return None
        creations.append(request.line)
        return HttpAnswer(403, refused) if len(creations) <= 2 else None

    with FaultProxy(f"unix://{SOCKET}", plan=plan) as proxy:
        provider = DockerProvider(base_url=proxy.url)
        for made in (3, 4):  # the second knows it already
            network, interfaces, output = await look(provider, tag, "strict")
            assert (interfaces, output) == (["lo"], ["127.0.0.1", "PermissionError"])
            assert network != os.readlink("/proc/self/ns/net")
            assert len(creations) == made
        await provider.aclose()
