"""Cancelling a command: its whole tree dies, whatever it did, and nobody else's."""

from collections.abc import AsyncIterator

import anyio
import pytest

from sandboxkit.types import Ending, PtySize, StdinItem
from tests import process_list
from tests.agent.conftest import AGENT, Box, Run

pytestmark = pytest.mark.anyio

# In a shell's single quotes.
SUBREAPER = """
import ctypes, subprocess, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
subprocess.run(["sh", "-c", "setsid sh -c \\"setsid sleep 1001 & exit\\" &"])
time.sleep(1000)
"""
SIBLINGS = """
import ctypes, os, time
clone_parent = 0x8000
for _ in range(5):
    if ctypes.CDLL(None).syscall(56, clone_parent, 0, 0, 0, 0) == 0:
        os.setsid()
        os.execlp("sleep", "sleep", "1001")
time.sleep(1000)
"""

TREES = {
    "plain": "sleep 1001 & sleep 1002",
    "setsid": "setsid sleep 1001 & sleep 1002",
    "double fork": "(setsid sh -c 'sleep 1001 & sleep 1003 & exit' &) ; sleep 1002",
    "cleared environment": "(env -i setsid sh -c 'env -i setsid sleep 1001 & exit' &); sleep 1002",
    "forged marker": "env SANDBOXKIT_EXEC_ID=x setsid sleep 1001 & (env SANDBOXKIT_EXEC_ID=x "
    "setsid sh -c 'sleep 1003 & exit' &); sleep 1002",
    "its own subreaper": "exec python3 -c '" + SUBREAPER + "'",
    "siblings of its main process": "exec python3 -c '" + SIBLINGS + "'",
    "ignores signals": "trap '' TERM INT HUP; (trap '' TERM; setsid sleep 1001 &); sleep 1002",
    "forks all the time": "f() { (sleep 0.01; f) & }; f; f; f; while :; do setsid sleep 0.3 & sleep 0.02; done",
}


async def cancelled(box: Box, script: str, **options: object) -> None:
    """Run a script that prints when it is ready, and cancel it then."""
    run = Run()
    async with anyio.create_task_group() as group:

        async def body() -> None:
            await box.sh(script, run=run, **options)

        group.start_soon(body)
        await run.started.wait()
        group.cancel_scope.cancel()


@pytest.mark.parametrize("tree", TREES)
async def test_cancelling_spares_other_commands(box: Box, tree: str) -> None:
    other = Run()
    left: list[str] = []
    async with anyio.create_task_group() as group:

        async def spared() -> None:
            await box.sh("echo up; read line; echo $line", run=other, stdin=line())

        async def line() -> AsyncIterator[StdinItem]:
            await done.wait()
            yield b"still here\n"

        done = anyio.Event()
        await box.sh("sleep 2001 & setsid sleep 2002 &")
        await box.settled("sleep 2001", "sleep 2002")
        group.start_soon(spared)
        await other.started.wait()
        await cancelled(box, f"({TREES[tree]}) & sleep 0.1; echo ready; wait")
        left = await box.processes()
        done.set()
    assert other.stdout == b"up\nstill here\n"
    assert sorted(line for line in left if line.startswith("sleep")) == ["sleep 2001", "sleep 2002"]
    assert [
        line for line in left if not line.startswith("sleep 200") and "read line" not in line
    ] == []


async def test_a_fork_bomb_is_killed(box: Box) -> None:
    await cancelled(
        box, "ulimit -u 1000; bomb() { bomb | bomb & }; bomb; sleep 0.3; echo ready; sleep 100"
    )
    with anyio.fail_after(60):
        assert await box.processes() == []


async def test_killing_works_for_a_command_on_a_terminal(box: Box) -> None:
    await cancelled(box, "setsid sleep 1001 & echo ready; sleep 1002", pty=PtySize())
    assert await box.processes() == []


async def test_killing_works_for_another_user(user_box: Box) -> None:
    for tree in TREES.values():
        await cancelled(user_box, f"({tree}) & sleep 0.1; echo ready; wait")
        assert await user_box.processes() == []


async def test_cancelling_at_any_time_leaves_no_process(box: Box) -> None:
    for pause in range(30):
        with anyio.move_on_after(pause / 5000):
            await box.sh("sleep 1000 & setsid sleep 1000 & wait")
        assert await box.processes() == []


async def test_a_command_that_floods_its_output_can_be_cancelled(box: Box) -> None:
    run = Run()
    stuck = anyio.Event()

    async def slow(stream: str, data: bytes) -> None:
        run.started.set()
        await stuck.wait()

    run.output = slow  # type: ignore[method-assign]  # a consumer that never returns
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:

            async def body() -> None:
                await box.exec("yes", run=run)

            group.start_soon(body)
            await run.started.wait()
            group.cancel_scope.cancel()
    assert await box.processes() == []


async def test_cancelling_kills_processes_that_fork_every_two_milliseconds(box: Box) -> None:
    """Thirty keep two processors busy, as a hundred do, which need most of the 30 s that a kill may take."""
    forks = """if True:
        import os, time
        for _ in range(30):
            if os.fork() == 0:
                os.setsid()
                while True:
                    if os.fork():
                        os._exit(0)
                    os.setsid()
                    time.sleep(0.002)
        print("ready", flush=True)
        time.sleep(1000)
    """
    for _ in range(3):
        run = Run()
        async with anyio.create_task_group() as group:

            async def body(run: Run = run) -> None:
                await box.exec("python3", "-c", forks, run=run)

            group.start_soon(body)
            await run.started.wait()
            group.cancel_scope.cancel()
        assert await box.processes() == []


# $PPID is a command's reaper; another command's is the parent of its shell.
@pytest.mark.parametrize("signal", ["KILL", "STOP", "TERM", "SEGV", "HUP"])
async def test_a_command_cannot_escape_by_signals_to_its_reaper(box: Box, signal: str) -> None:
    spared = Run()
    async with anyio.create_task_group() as group:

        async def neighbour() -> None:
            await box.sh("echo up; exec sleep 2001", run=spared)

        group.start_soon(neighbour)
        await box.settled("sleep 2001")
        await cancelled(
            box,
            f"(setsid sleep 1001 &); kill -{signal} $PPID; (setsid sleep 1002 &) ; "
            "sleep 0.05; echo ready; sleep 1003",
        )
        assert await box.processes() == ["sleep 2001"]
        group.cancel_scope.cancel()
    assert await box.processes() == []


@pytest.mark.parametrize("signal", ["KILL", "STOP", "TERM"])
async def test_signals_to_its_reaper_do_not_change_how_a_command_ends(
    box: Box, signal: str
) -> None:
    with anyio.fail_after(60):
        run = await box.sh(f"kill -{signal} $PPID; sleep 0.05; echo done; exit 7")
    assert (run.stdout, run.status, run.exit.ending) == (b"done\n", 7, Ending.EXITED)
    assert run.exit.usage.processor_seconds is not None


@pytest.mark.parametrize("signal", ["KILL", "STOP"])
async def test_a_neighbours_reaper_that_was_signalled_loses_nothing(box: Box, signal: str) -> None:
    run = Run()
    async with anyio.create_task_group() as group:

        async def victim() -> None:
            await box.sh(
                "(setsid sleep 3001 &); echo $PPID; read line; exit 5",
                run=run,
                stdin=line(),
            )

        async def line() -> AsyncIterator[StdinItem]:
            await signalled.wait()
            yield b"go\n"

        signalled = anyio.Event()
        group.start_soon(victim)
        await run.started.wait()
        with anyio.fail_after(60):
            while "sleep 3001" not in await box.processes():
                await anyio.sleep(0.01)
        await cancelled(
            box, f"kill -{signal} {run.stdout.decode().strip()}; echo ready; sleep 1001"
        )
        assert "sleep 3001" in await box.processes()
        signalled.set()
    assert run.status == 5


async def test_a_command_without_its_reaper_is_killed_completely(box: Box) -> None:
    run = Run()
    async with anyio.create_task_group() as group:

        async def victim() -> None:
            await box.sh("echo $PPID; (setsid sleep 3001 &); sleep 3002", run=run)

        group.start_soon(victim)
        await run.started.wait()
        await box.sh(f"kill -9 {run.stdout.decode().strip()}; sleep 0.05")
        group.cancel_scope.cancel()
    assert await box.processes() == []


async def test_a_daemon_outlives_its_command_and_kills_of_other_commands(box: Box) -> None:
    await box.sh("(env -i setsid sleep 2001 &)")
    await cancelled(box, "(env -i setsid sleep 1001 &) ; echo ready; sleep 1002")
    await box.settled("sleep 2001")


async def test_no_reaper_outlives_its_processes(box: Box) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(300):
            group.start_soon(box.exec, "true")
    with anyio.fail_after(60):
        while len(names := await everything(box)) > 2:
            await anyio.sleep(0.01)
    # The agent, and the reaper of the program that asks.
    assert names == [AGENT[:15], AGENT[:15]]


async def everything(box: Box) -> list[str]:
    """The names of all processes, zombies included."""
    found = process_list.parse((await box.exec(*process_list.COMMAND)).stdout)
    return [each.name for each in found]


async def test_reapers_are_not_counted_as_the_sandboxs_processes(box: Box) -> None:
    await box.sh("sleep 1001 & sleep 1002 & setsid sleep 1003 &")
    await box.settled("sleep 1001", "sleep 1002", "sleep 1003")
    assert (await box.provider.usage(box.id)).processes == 4


async def test_a_reaper_can_be_neither_read_nor_traced(box: Box) -> None:
    for path in ("environ", "mem", "maps", "fd/3", "root/etc/passwd"):
        run = await box.sh(f"head -c1 /proc/$PPID/{path}")
        assert run.status != 0
        assert run.stdout == b""
    trace = "import ctypes, os; print(ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0))"
    assert (await box.exec("python3", "-c", trace)).stdout == b"-1\n"
    status = (await box.sh("cat /proc/$PPID/status")).stdout.decode()
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert f"{name}:\t{0:016x}" in status


async def test_a_commands_environment_has_no_variable_of_the_agent(box: Box) -> None:
    assert b"SANDBOXKIT_EXEC_ID" not in (await box.exec("env")).stdout
