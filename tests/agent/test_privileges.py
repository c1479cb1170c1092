"""What a command may do to the agent: nothing."""

import resource

import pytest

from sandboxkit.types import SandboxSpec
from tests.agent.conftest import Box, NamespaceProvider

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["box", "user_box"])
def any_box(request: pytest.FixtureRequest) -> Box:
    box: Box = request.getfixturevalue(request.param)
    return box


async def test_commands_have_no_capabilities_and_gain_none(any_box: Box) -> None:
    status = (await any_box.exec("cat", "/proc/self/status")).stdout.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(fields[name], 16) == 0, name
    assert fields["NoNewPrivs"] == "1"


@pytest.mark.parametrize(
    "path", ["mem", "environ", "maps", "fd/0", "root/etc/passwd", "task/1/mem"]
)
async def test_pid_1_cannot_be_read(any_box: Box, path: str) -> None:
    run = await any_box.exec("head", "-c1", f"/proc/1/{path}")
    assert run.status != 0
    assert run.stdout == b""


async def test_pid_1_cannot_be_killed_stopped_or_traced(any_box: Box) -> None:
    for number in range(1, 65):
        await any_box.sh(f"kill -{number} 1; kill -{number} 2")
    queued = """if True:
        import ctypes
        info = (ctypes.c_int * 32)()
        for number in range(1, 65):
            info[0], info[2] = number, -1
            ctypes.CDLL(None).syscall(129, 1, number, ctypes.byref(info))
    """
    assert (await any_box.exec("python3", "-c", queued)).status == 0
    trace = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"
    assert (await any_box.exec("python3", "-c", trace)).stdout == b"-1\n"
    assert (await any_box.exec("true")).status == 0


async def test_threads_that_touch_files_cannot_be_signalled_read_or_traced(any_box: Box) -> None:
    """They act as the commands' user, and are part of PID 1 none the less."""
    await any_box.provider.write_file(any_box.id, f"{any_box.workdir}/file", b"x", mode=None)
    attack = """if True:
        import ctypes, os, signal
        libc = ctypes.CDLL(None, use_errno=True)
        done = []
        for thread in map(int, os.listdir("/proc/1/task")):
            for number in (0, signal.SIGSTOP, signal.SIGKILL, 33):
                if libc.syscall(234, 1, thread, number) == 0 and os.getuid():
                    done.append((thread, "signalled", number))
            if libc.ptrace(16, thread, 0, 0) == 0:
                done.append((thread, "traced"))
            for name in ("environ", "mem", "maps", "cwd", "fd/0", "syscall", "stack"):
                path = f"/proc/1/task/{thread}/{name}"
                try:
                    os.readlink(path) if name in ("cwd", "fd/0") else open(path, "rb").read(1)
                except OSError:
                    continue
                done.append((thread, name))
        print(done)
    """
    run = await any_box.exec("python3", "-c", attack)
    assert run.stdout == b"[]\n"
    assert (
        await any_box.provider.read_file(any_box.id, f"{any_box.workdir}/file", max_bytes=1) == b"x"
    )


async def test_the_limit_of_open_files_is_what_the_agent_was_started_with(
    provider: NamespaceProvider,
) -> None:
    """Go raises it for itself."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (700, before[1]))
    try:
        sandbox_id = await provider.create(SandboxSpec(workdir=str(provider.folder / "work")))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    box = Box(provider, sandbox_id, provider.folder / "work")
    assert (await box.sh("ulimit -Sn; ulimit -Hn")).stdout.split() == [b"700", b"%d" % before[1]]


async def test_commands_inherit_only_their_three_descriptors(any_box: Box) -> None:
    run = await any_box.sh("ls /proc/$$/fd")
    assert run.stdout.split() == [b"0", b"1", b"2"]


async def test_signal_handling_is_the_default(any_box: Box) -> None:
    status = (await any_box.exec("cat", "/proc/self/status")).stdout.decode()
    for name in ("SigIgn", "SigBlk"):
        assert f"{name}:\t{0:016x}" in status
