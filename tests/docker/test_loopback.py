"""Without a network: a network namespace of its own, its loopback, and the names for that."""

import json
import os
import re
import subprocess
from typing import Any

import anyio
import pytest

from sandboxkit.providers.docker import DockerProvider
from sandboxkit.providers.docker._loopback import HOSTS
from tests.docker.boxes import Boxes
from tests.docker.conftest import PROGRAMS, SOCKET
from tests.faults import Fault, FaultProxy, HttpAnswer, Request

pytestmark = pytest.mark.anyio

# One spec for each way in which a sandbox comes by its /etc/hosts.
SPECS: dict[str, dict[str, Any]] = {  # any option's type
    "root": {},
    "user": {"user": "sandbox"},
    "service": {"command": ("sleep", "600")},
    "strict": {"profile": "strict"},
}


def by_the_daemon() -> bytes:
    """The /etc/hosts that the daemon writes for a container without a network."""
    image = os.environ["SANDBOXKIT_DOCKER_IMAGE"]
    run = ["docker", "run", "--rm", "--network=none", "--entrypoint=cat", image, "/etc/hosts"]
    return subprocess.run(run, check=True, capture_output=True).stdout


async def look(
    boxes: Boxes[DockerProvider], provider: DockerProvider, name: str
) -> tuple[str, list[str], list[str]]:
    """Its network namespace and interfaces, who was heard by the name, and a new name's address."""
    box = await boxes.start(provider, **SPECS[name])
    assert (await provider.read_file(box.id, "/etc/hosts", max_bytes=1000)) == HOSTS
    network, interfaces, output = json.loads(await box.python(PROGRAMS["loopback"]))
    return network, interfaces, output


async def test_each_sandbox_has_its_own_loopback_and_names(boxes: Boxes[DockerProvider]) -> None:
    assert by_the_daemon() == HOSTS
    found: dict[str, tuple[str, list[str], list[str]]] = {}
    provider = boxes.provider()

    async def one(name: str) -> None:
        found[name] = await look(boxes, provider, name)

    async with anyio.create_task_group() as tasks:
        for name in SPECS:
            tasks.start_soon(one, name)
    assert {name: output[1:] for name, output in found.items()} == {
        "root": (["lo"], ["127.0.0.1", "127.0.0.1"]),
        "user": (["lo"], ["127.0.0.1", "PermissionError"]),
        "service": (["lo"], ["127.0.0.1", "127.0.0.1"]),
        "strict": (["lo"], ["127.0.0.1", "PermissionError"]),
    }
    networks = {os.readlink("/proc/self/ns/net"), *(output[0] for output in found.values())}
    assert len(networks) == 1 + len(SPECS)  # so neither reaches another's abstract sockets


async def test_a_daemon_that_mounts_no_part_of_a_volume_makes_the_names_itself(
    boxes: Boxes[DockerProvider],
) -> None:
    agent = boxes.provider()._agent
    hosts = (await agent.ensure(os.environ["SANDBOXKIT_DOCKER_IMAGE"])).hosts
    refused = json.dumps({"message": f"mounts denied: the path {hosts} is not shared"}).encode()
    creations: list[str] = []

    def plan(request: Request) -> Fault | None:
        if not re.match("POST .*/containers/create.name=sandboxkit-[0-9a-f]{16}", request.line):
            return None
        creations.append(request.line)
        return HttpAnswer(403, refused) if len(creations) <= 2 else None

    with FaultProxy(f"unix://{SOCKET}", plan=plan) as proxy:
        provider = boxes.provider(base_url=proxy.url)
        for made in (3, 4):  # the second knows it already
            network, interfaces, output = await look(boxes, provider, "strict")
            assert (interfaces, output) == (["lo"], ["127.0.0.1", "PermissionError"])
            assert network != os.readlink("/proc/self/ns/net")
            assert len(creations) == made
        await boxes.close()
