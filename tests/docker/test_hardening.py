"""What a program in a sandbox must not be able to do, its user, and its own loopback without a network."""

import json
import os
import re
import subprocess
from typing import Any

import anyio
import pytest

from sandboxkit import Session
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.providers.docker._container import own_user
from sandboxkit.providers.docker._loopback import HOSTS
from tests.data_here import beside
from tests.docker.boxes import Box, Containers
from tests.docker.conftest import PROGRAMS, SOCKET, docker
from tests.faults import Fault, FaultProxy, HttpAnswer, Request
from tests.host_counts import ATTACKS
from tests.local.test_host_uid import assert_others_keep_their_budget

pytestmark = pytest.mark.anyio


async def test_limits_are_in_force(box: Box) -> None:
    assert await box.python(PROGRAMS["limits"]) == "(0, 0) (4096, 4096) (65536, 65536)"


async def test_the_daemons_settings_are_the_hardened_ones(box: Box) -> None:
    container = json.loads(" ".join(docker("inspect", box.id)))[0]
    host = container["HostConfig"]
    expected = beside(__file__, "hardening.toml")
    assert {name: host[name] for name in expected} == expected
    assert host["LogConfig"]["Type"] == "none"
    assert "no-new-privileges" in host["SecurityOpt"]
    assert not host["Binds"]
    assert [mount["RW"] for mount in container["Mounts"]] == [False]


async def test_secrets_and_variables_are_not_in_the_configuration(boxes: Containers) -> None:
    env, secrets = {"PLAIN": "seen-nowhere"}, {"TOKEN": "s3cr3t-value"}
    box = await boxes.start(env=env, secrets=secrets)
    read = "import os; print(os.environ['PLAIN'], os.environ['TOKEN'])"
    assert await box.python(read) == "seen-nowhere s3cr3t-value"
    for verb in ("inspect", "top"):
        assert "s3cr3t-value" not in " ".join(docker(verb, box.id))


async def test_strict_writes_to_sized_folders_and_runs_what_it_writes(boxes: Containers) -> None:
    box = await boxes.start(profile="strict", disk_mb=64)
    script = "printf '#!/bin/sh\\necho ran\\n' > prog && chmod +x prog && ./prog && rm prog"
    assert await box.run("sh", "-c", script) == (0, "ran\n", "")
    out = await box.python(PROGRAMS["writable_folders"])
    assert out == "['/tmp', '/workspace', '/dev/shm']\nNo space left on device"


async def test_strict_containers_run_as_different_users_in_any_workdir(boxes: Containers) -> None:
    found = set()
    for _ in range(2):
        box = await boxes.start(profile="strict", workdir="/task/deep")
        look = "touch x; pwd; id -u; id -g; id -G"
        workdir, uid, gid, groups = (await box.run("sh", "-c", look))[1].split()
        assert workdir == "/task/deep"
        assert uid == gid == groups
        assert int(uid) >= 20_000
        found.add(uid)
        assert (await box.run("id", "-u", user="nobody"))[1] == "65534\n"
    assert len(found) == 2
    named = await boxes.start(profile="strict", user="1234:50")
    assert (await named.run("sh", "-c", "id -u; id -g"))[1] == "1234\n50\n"


def test_where_the_daemon_maps_users_the_uid_is_a_mapped_one() -> None:
    for option in ("name=userns", "name=rootless"):
        uid = int(own_user(["name=seccomp,profile=builtin", option]).partition(":")[0])
        assert 20_000 <= uid < 60_000
    assert int(own_user(["name=cgroupns"]).partition(":")[0]) >= 1 << 20


@pytest.mark.parametrize("what", ATTACKS)
def test_other_strict_containers_keep_their_full_budget(daemon: None, what: str) -> None:
    with Session("docker", profile="strict") as session:
        assert_others_keep_their_budget(session, what)


# One spec for each way in which a sandbox comes by its /etc/hosts.
SPECS: dict[str, dict[str, Any]] = {"root": {}, "user": {"user": "sandbox"}}  # any option's type
SPECS |= {"service": {"command": ("sleep", "600")}, "strict": {"profile": "strict"}}


async def look(boxes: Containers, provider: DockerProvider, name: str) -> list[Any]:
    """Its network namespace and interfaces, who was heard by the name, and a new name's address."""
    box = await boxes.start(provider, **SPECS[name])
    assert (await box.inner.read_file("/etc/hosts", max_bytes=1000)) == HOSTS
    return list(json.loads(await box.python(PROGRAMS["loopback"])))


async def test_each_sandbox_has_its_own_loopback_and_names(boxes: Containers) -> None:
    image = os.environ["SANDBOXKIT_DOCKER_IMAGE"]
    run = ["docker", "run", "--rm", "--network=none", "--add-host=sandbox:127.0.0.1"]
    run += ["--entrypoint=cat", image, "/etc/hosts"]
    assert subprocess.run(run, check=True, capture_output=True).stdout == HOSTS  # the daemon's own
    networks = {os.readlink("/proc/self/ns/net")}
    provider = boxes.provider()

    async def one(name: str) -> None:
        network, *found = await look(boxes, provider, name)
        new = "127.0.0.1" if name in ("root", "service") else "PermissionError"
        assert found == [["lo"], ["127.0.0.1", new]], name
        networks.add(network)

    async with anyio.create_task_group() as tasks:
        for name in SPECS:
            tasks.start_soon(one, name)
    assert len(networks) == 1 + len(SPECS)  # so neither reaches another's abstract sockets


async def test_a_daemon_that_mounts_no_part_of_a_volume_makes_the_names(boxes: Containers) -> None:
    agent = boxes.provider().agent
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
