"""What a program in a sandbox must not be able to do."""

import json
import subprocess

import pytest

from sandboxkit.providers.docker import DockerProvider
from sandboxkit.types import SandboxSpec
from tests.docker.conftest import Box

pytestmark = pytest.mark.anyio


async def test_commands_have_no_capability_and_cannot_gain_one(box: Box) -> None:
    lines = (await box.python("print(open('/proc/self/status').read())")).splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"


async def test_the_agent_cannot_be_killed_traced_or_read(box: Box) -> None:
    code = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def refused(call):
    try:
        call()
    except OSError as error:
        return error.errno in (1, 13)
    return False
assert libc.ptrace(16, 1, 0, 0) == -1 and ctypes.get_errno() == 1
assert refused(lambda: open("/proc/1/mem", "rb"))
assert refused(lambda: open("/proc/1/environ", "rb").read())
assert refused(lambda: os.readlink("/proc/1/fd/0"))
assert refused(lambda: os.readlink("/proc/1/exe"))
assert refused(lambda: os.listdir("/proc/1/root"))
for sig in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV):
    try:
        os.kill(1, sig)
    except PermissionError:
        pass
print("intact")
"""
    assert await box.python(code) == "intact"
    assert await box.python("print('still here')") == "still here"


async def test_dangerous_system_calls_are_refused(box: Box) -> None:
    code = """
import ctypes, errno, json, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(*numbers):
    ctypes.set_errno(0)
    result = libc.syscall(*numbers)
    return "allowed" if result >= 0 else errno.errorcode[ctypes.get_errno()]
def make(family):
    try:
        socket.socket(family, socket.SOCK_RAW if family == 17 else socket.SOCK_STREAM)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "allowed"
x86 = platform.machine() == "x86_64"
print(json.dumps({
    "unshare(NEWUSER)": call(272 if x86 else 97, 0x10000000),
    "mount": call(165 if x86 else 40, b"none", b"/mnt", b"tmpfs", 0, None),
    "io_uring_setup": call(425, 8, ctypes.create_string_buffer(120)),
    "bpf": call(321 if x86 else 280, 0, 0, 0),
    "perf_event_open": call(298 if x86 else 241, ctypes.create_string_buffer(128), 0, -1, -1, 0),
    "add_key": call(248 if x86 else 217, b"user", b"k", b"v", 1, -2),
    "userfaultfd": call(323 if x86 else 282, 0),
    "AF_VSOCK": make(40),
    "AF_PACKET": make(17),
}))
"""
    answers: dict[str, str] = json.loads(await box.python(code))
    refusals = {"EPERM", "ENOSYS", "EACCES", "EAFNOSUPPORT", "EINVAL"}
    assert {name for name, output in answers.items() if output not in refusals} == set()


async def test_limits_are_in_force(box: Box) -> None:
    code = """
import resource as r
print(r.getrlimit(r.RLIMIT_CORE), r.getrlimit(r.RLIMIT_NOFILE), r.getrlimit(r.RLIMIT_MEMLOCK))
"""
    assert await box.python(code) == "(0, 0) (4096, 4096) (65536, 65536)"


async def test_the_daemons_settings_are_the_hardened_ones(box: Box) -> None:
    done = subprocess.run(["docker", "inspect", box.id], capture_output=True, text=True, check=True)
    container = json.loads(done.stdout)[0]
    host = container["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert host["Memory"] == host["MemorySwap"] == 1024 * 1024 * 1024
    assert host["PidsLimit"] == 256 + 32
    assert host["NetworkMode"] == "none"
    assert host["IpcMode"] == "private"
    assert host["LogConfig"]["Type"] == "none"
    assert not host["Privileged"]
    assert host["AutoRemove"]
    assert "no-new-privileges" in host["SecurityOpt"]
    assert not host["Binds"]
    assert [mount["RW"] for mount in container["Mounts"]] == [False]


async def test_secrets_and_variables_are_not_in_the_container_configuration(
    provider: DockerProvider, tag: str
) -> None:
    spec = SandboxSpec(
        tags={"test": tag}, env={"PLAIN": "seen-nowhere"}, secrets={"TOKEN": "s3cr3t-value"}
    )
    sandbox_id = await provider.create(spec)
    try:
        read = "import os; print(os.environ['PLAIN'], os.environ['TOKEN'])"
        assert await Box(provider, sandbox_id).python(read) == "seen-nowhere s3cr3t-value"
        done = subprocess.run(["docker", "inspect", sandbox_id], capture_output=True, text=True)
        assert "s3cr3t-value" not in done.stdout
        top = subprocess.run(["docker", "top", sandbox_id], capture_output=True, text=True)
        assert "s3cr3t-value" not in top.stdout
    finally:
        await provider.delete(sandbox_id)


async def test_commands_run_as_the_specs_user_and_may_not_change_it(
    provider: DockerProvider, tag: str
) -> None:
    sandbox_id = await provider.create(SandboxSpec(tags={"test": tag}, user="sandbox"))
    box = Box(provider, sandbox_id)
    try:
        code = (
            "import os; print(os.getuid(), os.getgid(), os.getcwd(), os.environ['HOME'])\n"
            "open('mine', 'w')\n"
            "try: os.setuid(0)\n"
            "except PermissionError: print('refused')"
        )
        assert await box.python(code) == "1000 1000 /workspace /home/sandbox\nrefused"
        status, _, err = await box.run("cat", "/etc/shadow")
        assert status == 1, err
    finally:
        await provider.delete(sandbox_id)


async def test_strict_writes_only_to_sized_folders(strict_box: Box) -> None:
    code = """
import glob, os, shutil
assert os.getuid() != 0
writable = []
for folder in ("/", "/etc", "/usr", "/var", "/var/tmp", "/home", "/root", "/opt", "/run", "/dev",
               "/tmp", "/workspace", "/dev/shm", *glob.glob("/.sandboxkit-*")):
    try:
        open(os.path.join(folder, "probe"), "w").close()
        writable.append(folder)
    except OSError:
        pass
print(writable)
sizes = [shutil.disk_usage(folder).total for folder in writable]
assert sum(sizes) <= 64 << 20, sizes
try:
    with open("/workspace/big", "wb") as file:
        for _ in range(200):
            file.write(bytes(1 << 20))
except OSError as error:
    print(error.strerror)
os.remove("/workspace/big")
try:
    for n in range(30_000):
        open(f"/workspace/{n}", "w").close()
except OSError as error:
    print(error.strerror)
"""
    out = await strict_box.python(code)
    assert out.splitlines() == [
        "['/tmp', '/workspace', '/dev/shm']",
        "No space left on device",
        "No space left on device",
    ]


async def test_strict_can_run_what_it_writes(strict_box: Box) -> None:
    script = "printf '#!/bin/sh\\necho ran\\n' > prog && chmod +x prog && ./prog"
    assert await strict_box.run("sh", "-c", script) == (0, "ran\n", "")


async def test_a_strict_sandbox_takes_another_workdir(provider: DockerProvider, tag: str) -> None:
    spec = SandboxSpec(tags={"test": tag}, profile="strict", workdir="/task/deep")
    sandbox_id = await provider.create(spec)
    try:
        code = "import os; open('x', 'w'); print(os.getcwd())"
        assert await Box(provider, sandbox_id).python(code) == "/task/deep"
    finally:
        await provider.delete(sandbox_id)
