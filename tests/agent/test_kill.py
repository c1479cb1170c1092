"""Cancelling a command: its whole tree dies, whatever it did, and nobody else's."""

from functools import partial

import anyio
import pytest

from sandboxkit.types import Ending, PtySize
from tests import process_list
from tests.agent.conftest import AGENT, PROGRAMS, Box, Run, after

pytestmark = pytest.mark.anyio

TREES = PROGRAMS["trees"]


@pytest.mark.parametrize("tree", TREES)
async def test_cancelling_spares_other_commands(any_box: Box, tree: str) -> None:
    other, done, left = Run(), anyio.Event(), list[str]()
    await any_box.sh("sleep 2001 & setsid sleep 2002 &")
    await any_box.settled("sleep 2001", "sleep 2002")
    async with anyio.create_task_group() as group:
        spared = "echo up; read line; echo $line"
        stdin = after(done, b"still here\n")
        group.start_soon(partial(any_box.sh, spared, run=other, stdin=stdin))
        await other.started.wait()
        async with any_box.running(f"({TREES[tree]}) & sleep 0.1; echo ready; wait"):
            pass
        left = [each for each in await any_box.processes() if "read line" not in each]
        done.set()
    assert other.stdout == b"up\nstill here\n"
    assert sorted(left) == ["sleep 2001", "sleep 2002"]


async def test_killing_works_for_a_command_on_a_terminal(box: Box) -> None:
    async with box.running("setsid sleep 1001 & echo ready; sleep 1002", pty=PtySize()):
        pass
    assert await box.processes() == []


async def test_cancelling_at_any_time_leaves_no_process(box: Box) -> None:
    for pause in range(0, 30, 2):
        with anyio.move_on_after(pause / 5000):
            await box.sh("sleep 1000 & setsid sleep 1000 & wait")
        assert await box.processes() == []


async def test_a_command_with_unread_output_stops_no_other_and_can_be_cancelled(box: Box) -> None:
    async with box.running("exec yes", run=Run(lambda _: anyio.sleep_forever())):
        for _ in range(20):
            assert (await box.exec("echo", "quick")).stdout == b"quick\n"
    assert await box.processes() == []


# $PPID is a command's reaper; another command's is the parent of its shell.
@pytest.mark.parametrize("signal", ["KILL", "STOP", "TERM", "SEGV", "HUP"])
async def test_a_command_cannot_escape_by_signals_to_its_reaper(box: Box, signal: str) -> None:
    script = f"(setsid sleep 1001 &); kill -{signal} $PPID; (setsid sleep 1002 &) ; "
    async with box.running("echo up; exec sleep 2001"):
        await box.settled("sleep 2001")
        async with box.running(script + "sleep 0.05; echo ready; sleep 1003"):
            pass
        assert await box.processes() == ["sleep 2001"]
    assert await box.processes() == []


@pytest.mark.parametrize("signal", ["KILL", "STOP", "TERM"])
async def test_signals_to_its_reaper_do_not_change_a_commands_end(box: Box, signal: str) -> None:
    with anyio.fail_after(60):
        run = await box.sh(f"kill -{signal} $PPID; sleep 0.05; echo done; exit 7")
    assert (run.stdout, run.status, run.exit.ending) == (b"done\n", 7, Ending.EXITED)
    assert run.exit.usage.processor_seconds is not None


@pytest.mark.parametrize("signal", ["KILL", "STOP"])
async def test_a_neighbours_reaper_that_was_signalled_loses_nothing(box: Box, signal: str) -> None:
    run, signalled = Run(), anyio.Event()
    async with anyio.create_task_group() as group:
        victim = "(setsid sleep 3001 &); echo $PPID; read line; exit 5"
        group.start_soon(partial(box.sh, victim, run=run, stdin=after(signalled, b"go\n")))
        await run.started.wait()
        with anyio.fail_after(60):
            while "sleep 3001" not in await box.processes():
                await anyio.sleep(0.01)
        async with box.running(f"kill -{signal} {int(run.stdout)}; echo ready; sleep 1001"):
            pass
        assert "sleep 3001" in await box.processes()
        signalled.set()
    assert run.status == 5


async def test_a_command_without_its_reaper_is_killed_completely(box: Box) -> None:
    async with box.running("echo $PPID; (setsid sleep 3001 &); sleep 3002") as run:
        await box.sh(f"kill -9 {int(run.stdout)}; sleep 0.05")
    assert await box.processes() == []


async def test_no_reaper_outlives_its_processes(box: Box) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(300):
            group.start_soon(box.exec, "true")
    await box.sh("for i in 1 2 3 4 5; do setsid sh -c 'exit 0' & done; wait")
    names: list[str] = []
    with anyio.fail_after(60):
        # The agent, and the reaper of the program that asks; zombies included.
        while names != [AGENT, AGENT]:
            found = process_list.parse((await box.exec(*process_list.COMMAND)).stdout)
            names = [each.name[: len(AGENT)] for each in found]


async def test_reapers_are_not_counted_as_the_sandboxs_processes(box: Box) -> None:
    await box.sh("sleep 1001 & sleep 1002 & setsid sleep 1003 &")
    await box.settled("sleep 1001", "sleep 1002", "sleep 1003")
    assert (await box.inner.usage()).processes == 4


async def test_a_commands_environment_has_no_variable_of_the_agent(box: Box) -> None:
    assert b"SANDBOXKIT_EXEC_ID" not in (await box.exec("env")).stdout
