"""What a program in a sandbox must not be able to do."""

import json
import subprocess

import pytest

from sandboxkit.providers.docker import DockerProvider
from sandboxkit.types import SandboxSpec
from tests.docker.conftest import PROGRAMS, Box

pytestmark = pytest.mark.anyio


async def test_dangerous_system_calls_are_refused_and_limits_are_in_force(box: Box) -> None:
    answers = json.loads(await box.python(PROGRAMS["dangerous_system_calls"]))
    refusals = {"EPERM", "ENOSYS", "EACCES", "EAFNOSUPPORT", "EINVAL"}
    assert {name for name, output in answers.items() if output not in refusals} == set()
    assert await box.python(PROGRAMS["limits"]) == "(0, 0) (4096, 4096) (65536, 65536)"


async def test_the_daemons_settings_are_the_hardened_ones(box: Box) -> None:
    done = subprocess.run(["docker", "inspect", box.id], capture_output=True, text=True, check=True)
    container = json.loads(done.stdout)[0]
    host = container["HostConfig"]
    expected = {
        "CapDrop": ["ALL"],
        "Memory": 1024 * 1024 * 1024,
        "MemorySwap": 1024 * 1024 * 1024,
        "PidsLimit": 256 + 32,
        "NetworkMode": "none",
        "IpcMode": "private",
        "Privileged": False,
        "AutoRemove": True,
    }
    assert {name: host[name] for name in expected} == expected
    assert host["LogConfig"]["Type"] == "none"
    assert "no-new-privileges" in host["SecurityOpt"]
    assert not host["Binds"]
    assert [mount["RW"] for mount in container["Mounts"]] == [False]


async def test_secrets_and_variables_are_not_in_the_container_configuration(
    provider: DockerProvider, tag: str
) -> None:
    env, secrets = {"PLAIN": "seen-nowhere"}, {"TOKEN": "s3cr3t-value"}
    spec = SandboxSpec(tags={"test": tag}, env=env, secrets=secrets)
    sandbox_id = await provider.create(spec)
    try:
        read = "import os; print(os.environ['PLAIN'], os.environ['TOKEN'])"
        assert await Box(provider, sandbox_id).python(read) == "seen-nowhere s3cr3t-value"
        for verb in ("inspect", "top"):
            shown = subprocess.run(["docker", verb, sandbox_id], capture_output=True, text=True)
            assert "s3cr3t-value" not in shown.stdout
    finally:
        await provider.delete(sandbox_id)


async def test_strict_writes_only_to_sized_folders_and_runs_what_it_writes(
    provider: DockerProvider, tag: str
) -> None:
    spec = SandboxSpec(tags={"test": tag}, profile="strict", disk_mb=64)
    box = Box(provider, await provider.create(spec))
    script = "printf '#!/bin/sh\\necho ran\\n' > prog && chmod +x prog && ./prog && rm prog"
    assert await box.run("sh", "-c", script) == (0, "ran\n", "")
    full = "No space left on device"
    out = await box.python(PROGRAMS["writable_folders"])
    assert out.splitlines() == ["['/tmp', '/workspace', '/dev/shm']", full, full]
    await provider.delete(box.id)


async def test_a_strict_sandbox_takes_another_workdir(provider: DockerProvider, tag: str) -> None:
    spec = SandboxSpec(tags={"test": tag}, profile="strict", workdir="/task/deep")
    box = Box(provider, await provider.create(spec))
    code = "import os; open('x', 'w'); print(os.getcwd())"
    assert await box.python(code) == "/task/deep"
    await provider.delete(box.id)
