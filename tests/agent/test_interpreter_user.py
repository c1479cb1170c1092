"""As whom the interpreter runs, and what it can become: it is a program of the image."""

import json
from typing import Any

import pytest

from sandboxkit.errors import CommandStartError
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.types import Interpreter, SandboxSpec
from tests.agent.python_boxes import KINDS, PYTHON, PythonBox, python_box
from tests.docker_here import require_docker

pytestmark = pytest.mark.anyio

SETUID_AND_SETGID = 1 << 7 | 1 << 6

# What it finds before any job, as JSON.
STATUS = """
import builtins
lines = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
builtins.found = {name: lines[name].split() for name in ("Uid", "Gid", "Groups", "CapPrm", "CapInh", "CapEff", "CapAmb")}
"""
# Every way to another user or group, and a signal to another process. It lists those that were open.
ATTEMPTS = """
import builtins, ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
builtins.found = []
for uid in (0, 1, 4321):
    for name in ("setuid", "seteuid", "setgid", "setegid"):
        if getattr(libc, name)(uid) != -1:
            builtins.found.append(name)
    for name in ("setreuid", "setregid", "setresuid", "setresgid"):
        for at in range(3):
            ids = [-1, -1, -1]
            ids[at] = uid
            if getattr(libc, name)(*ids) != -1 and (at < 2 or "res" in name):
                builtins.found.append(f"{name} {at}")
    libc.setfsuid(uid), libc.setfsgid(uid)
    if libc.setfsuid(-1) != os.getuid() or libc.setfsgid(-1) != os.getgid():
        builtins.found.append("setfsuid")
    if libc.setgroups(1, (ctypes.c_uint32 * 1)(uid)) != -1:
        builtins.found.append("setgroups")
"""
SIGNAL = """
if os.getuid() != 0 and libc.kill(1, 0) != -1:
    builtins.found.append("kill")
"""
FOUND = "import json; print(json.dumps(found))"


async def found(kind: str, setup: str) -> Any:
    async with python_box(kind, Interpreter(PYTHON, setup=setup)) as box:
        return json.loads(await box.says(FOUND))


async def test_it_is_neither_root_nor_the_user_of_jobs() -> None:
    async with python_box("docker", Interpreter(PYTHON, setup=STATUS)) as box:
        state = json.loads(await box.says(FOUND))
        job = json.loads(await box.says(STATUS + FOUND))
    assert len(set(state["Uid"])) == 1
    assert not set(state["Uid"]) & {"0", *job["Uid"]}
    assert (state["Gid"], state["Groups"]) == (job["Gid"], job["Groups"])
    for name in ("CapPrm", "CapInh", "CapEff", "CapAmb"):
        assert int(state[name][0], 16) == SETUID_AND_SETGID, name
        assert int(job[name][0], 16) == 0, name


async def test_it_has_no_capability_where_jobs_have_its_own_user() -> None:
    state = await found("local", STATUS)
    for name in ("CapPrm", "CapInh", "CapEff", "CapAmb"):
        assert int(state[name][0], 16) == 0, name


@pytest.mark.parametrize("kind", KINDS)
async def test_it_becomes_no_user_that_jobs_do_not_have(kind: str) -> None:
    assert await found(kind, ATTEMPTS) == []


async def test_it_signals_no_other_user() -> None:
    assert await found("docker", ATTEMPTS + SIGNAL) == []


async def test_a_job_may_change_to_its_own_ids() -> None:
    code = (
        "import os; os.setuid(os.getuid()); os.setresgid(*[os.getgid()] * 3); os.setreuid(-1, -1)"
    )
    async with python_box("docker", Interpreter(PYTHON)) as box:
        assert await box.says(f"{code}; print('done')") == "done"


async def test_jobs_of_root_keep_the_capabilities_that_the_sandbox_gives_to_it() -> None:
    provider = DockerProvider(capabilities=("SETUID", "SETGID"))
    spec = SandboxSpec(image=require_docker(), user="root")
    box = PythonBox(provider, await provider.create(spec))
    try:
        await provider.start_interpreter(box.id, Interpreter(PYTHON))
        change = "import os; os.setgroups([7]); os.setgid(7); os.setuid(4321); print(os.getuid())"
        assert await box.says(change) == "4321"
    finally:
        await provider.delete(box.id)


async def test_a_job_of_another_user_is_refused() -> None:
    async with python_box("docker", Interpreter(PYTHON)) as box:
        with pytest.raises(CommandStartError, match="cannot become the user"):
            await box.job("print(1)", user="nobody")
        assert await box.says("print(1)") == "1"
