"""A command can do nothing to the agent, whatever it tries, and the agent survives its attempts."""

import resource
import sys
from functools import partial

import anyio
import pytest

from tests.agent.conftest import PROGRAMS, Box, NamespaceProvider, made

pytestmark = pytest.mark.anyio


async def test_commands_have_no_capability_and_only_three_descriptors(any_box: Box) -> None:
    status = (await any_box.exec("cat", "/proc/self/status")).stdout.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb", "SigIgn", "SigBlk"):
        assert int(fields[name], 16) == 0, name
    assert fields["NoNewPrivs"] == "1"
    assert (await any_box.sh("ls /proc/$$/fd")).stdout.split() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("who", ["1", "$PPID"], ids=["the agent", "its reaper"])
async def test_the_agent_and_its_reapers_cannot_be_read_or_traced(any_box: Box, who: str) -> None:
    for path in ("mem", "environ", "maps", "fd/0", "fd/3", "root/etc/passwd", "task/1/mem"):
        run = await any_box.sh(f"head -c1 /proc/{who}/{path}")
        assert (run.status != 0, run.stdout) == (True, b""), path
    trace = "import ctypes, sys; print(ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), 0, 0))"
    assert (await any_box.sh(f"exec python3 -c '{trace}' {who}")).stdout == b"-1\n"


async def test_pid_1_cannot_be_signalled(any_box: Box) -> None:
    for number in range(1, 65):
        await any_box.sh(f"kill -{number} 1; kill -{number} 2")
    assert (await any_box.exec("python3", "-c", PROGRAMS["queued_signals"])).status == 0
    assert (await any_box.exec("true")).status == 0


async def test_threads_that_touch_files_cannot_be_signalled_read_or_traced(any_box: Box) -> None:
    """They act as the commands' user, and are part of PID 1 none the less."""
    path = f"{any_box.workdir}/file"
    await any_box.inner.write_file(path, b"x", mode=None)
    assert (await any_box.exec("python3", "-c", PROGRAMS["threads"])).stdout == b"[]\n"
    assert await any_box.inner.read_file(path, max_bytes=1) == b"x"


async def test_commands_may_open_as_many_files_as_before(provider: NamespaceProvider) -> None:
    # Go raises it for itself.
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (700, before[1]))
    try:
        box = await made(provider)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (await box.sh("ulimit -Sn; ulimit -Hn")).stdout.split() == [b"700", b"%d" % before[1]]


async def test_the_agents_limits_cannot_be_lowered_and_a_commands_own_can(box: Box) -> None:
    """Linux lets any process of the same user do that."""
    await box.exec(sys.executable, "-c", PROGRAMS["limits"])
    assert (await box.sh("echo still here")).stdout == b"still here\n"
    assert (await box.sh("prlimit --pid 1 --nofile=9:9")).status != 0
    own = "prlimit --nofile=9:9 sh -c 'ulimit -n'; prlimit --pid $$ --nofile=8:8; ulimit -n"
    assert (await box.sh(own)).stdout.split() == [b"9", b"8"]


@pytest.mark.parametrize(
    "signals", [range(34, 65), [10, 12], [17], [23]], ids=["real-time", "user", "child", "urgent"]
)
async def test_a_signal_flood_does_not_delay_the_agent(box: Box, signals: range) -> None:
    argv = [sys.executable, "-c", PROGRAMS["flood"], *map(str, signals)]
    async with box.running(*argv):
        await anyio.sleep(1)
        with anyio.fail_after(30):
            assert (await box.sh("echo still here")).stdout == b"still here\n"


async def test_a_flood_does_not_fill_the_shared_signal_queue(
    box: Box, provider: NamespaceProvider
) -> None:
    """A real-time signal that waits counts for its user everywhere: no other agent could start."""
    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(box.exec, "python3", "-c", PROGRAMS["signal_queue_flood"])
        await anyio.sleep(1)
        queued = (await box.sh("grep SigQ /proc/1/status")).stdout.split()[1]
        assert int(queued.split(b"/")[0]) < 1000
        with anyio.fail_after(60):
            other = await made(provider)
        soft, hard = (await other.sh("grep pending /proc/self/limits")).stdout.split()[3:5]
        assert soft == hard != b"0"  # a command has what the agent was given
        group.cancel_scope.cancel()


async def test_many_file_calls_at_once_start_no_thread(box: Box) -> None:
    """Go ends the agent when it cannot start a thread."""
    path = str(box.workdir / "file")
    await box.inner.write_file(path, b"x" * (1 << 20), mode=None)
    threads = "grep Threads /proc/1/status"
    before = (await box.sh(threads)).stdout
    async with anyio.create_task_group() as group:
        for _ in range(60):
            group.start_soon(partial(box.inner.read_file, path, max_bytes=1 << 20))
    assert (await box.sh(threads)).stdout == before


async def test_a_reaper_has_no_capability(box: Box) -> None:
    status = (await box.sh("cat /proc/$PPID/status")).stdout.decode()
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert f"{name}:\t{0:016x}" in status
