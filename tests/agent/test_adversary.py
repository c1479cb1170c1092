"""What commands of the agent's own user try against it, and what it must survive."""

import sys

import anyio
import pytest

from sandboxkit.types import Command, SandboxSpec
from tests.agent.conftest import Box, NamespaceProvider, Run

pytestmark = pytest.mark.anyio

LIMITS = """
import resource
for pid in range(1, 60):
    for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CPU):
        try:
            resource.prlimit(pid, number, (0, 0))
            print(pid, end=" ")
        except (OSError, ValueError):
            pass
"""
FLOOD = """
import os, sys
os.fork(), os.fork(), os.fork()
print("begun", flush=True)
while True:
    for number in map(int, sys.argv[1:]):
        try:
            os.kill(1, number)
        except OSError:
            pass
"""


async def test_the_agents_limits_cannot_be_lowered(box: Box) -> None:
    """Linux lets any process of the same user do that."""
    await box.exec(sys.executable, "-c", LIMITS)
    assert (await box.sh("echo still here")).stdout == b"still here\n"
    assert (await box.sh("prlimit --pid 1 --nofile=9:9")).status != 0


async def test_a_command_can_lower_its_own_limits(box: Box) -> None:
    run = await box.sh(
        "prlimit --nofile=9:9 sh -c 'ulimit -n'; prlimit --pid $$ --nofile=8:8; ulimit -n"
    )
    assert run.stdout.split() == [b"9", b"8"], run.stderr


@pytest.mark.parametrize(
    "signals", [range(34, 65), [10, 12], [17], [23]], ids=["real-time", "user", "child", "urgent"]
)
async def test_a_signal_flood_does_not_delay_the_agent(box: Box, signals: range) -> None:
    run = Run()
    async with anyio.create_task_group() as group:
        argv = [sys.executable, "-c", FLOOD, *map(str, signals)]
        group.start_soon(lambda: box.exec(*argv, run=run))
        await run.started.wait()
        await anyio.sleep(1)
        with anyio.fail_after(30):
            assert (await box.sh("echo still here")).stdout == b"still here\n"
        group.cancel_scope.cancel()


async def test_a_command_has_no_signals_blocked(box: Box) -> None:
    run = await box.sh("grep SigBlk /proc/self/status")
    assert run.stdout.split() == [b"SigBlk:", b"0" * 16]


async def test_many_file_calls_at_once_start_no_thread(box: Box) -> None:
    """Go ends the agent when it cannot start a thread."""
    path = str(box.workdir / "file")
    await box.provider.write_file(box.id, path, b"x" * (1 << 20), mode=None)
    threads = "grep Threads /proc/1/status"
    before = (await box.sh(threads)).stdout
    async with anyio.create_task_group() as group:
        for _ in range(60):
            group.start_soon(lambda: box.provider.read_file(box.id, path, max_bytes=1 << 20))
    assert (await box.sh(threads)).stdout == before


async def test_a_signal_flood_does_not_fill_the_shared_signal_queue(
    box: Box, provider: NamespaceProvider
) -> None:
    """A real-time signal that waits counts for its user everywhere: no other agent could start."""
    flood = "import os\nwhile True:\n    for n in range(34, 65): os.kill(1, n)"
    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(box.exec, "python3", "-c", flood)
        await anyio.sleep(1)
        queued = (await box.sh("grep SigQ /proc/1/status")).stdout.split()[1]
        assert int(queued.split(b"/")[0]) < 1000
        spec = SandboxSpec(workdir=str(provider.folder / "other"))
        with anyio.fail_after(60):
            other = await provider.create(spec)
        run = Run()
        await provider.exec(other, Command(("grep", "pending", "/proc/self/limits")), run.output)
        soft, hard = run.stdout.split()[3:5]
        assert soft == hard != b"0"  # a command has what the agent was given
        group.cancel_scope.cancel()
