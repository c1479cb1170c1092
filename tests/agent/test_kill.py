"""Cancelling a command: its whole tree dies, whatever it did, and nobody else's."""

from collections.abc import AsyncIterator

import anyio
import pytest

from sandboxkit.types import PtySize, StdinItem
from tests.agent.conftest import Box, Run

pytestmark = pytest.mark.anyio

TREES = {
    "plain": "sleep 1001 & sleep 1002",
    "setsid": "setsid sleep 1001 & sleep 1002",
    "double fork": "(setsid sh -c 'sleep 1001 & sleep 1003 & exit' &) ; sleep 1002",
    "cleared environment": "(env -i setsid sh -c 'env -i setsid sleep 1001 & exit' &); sleep 1002",
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
async def test_cancelling_kills_the_whole_tree(box: Box, tree: str) -> None:
    await cancelled(box, f"({TREES[tree]}) & sleep 0.1; echo ready; wait")
    assert await box.processes() == []


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
    assert not [line for line in left if "100" in line]


async def test_a_fork_bomb_is_killed(box: Box) -> None:
    await cancelled(
        box, "ulimit -u 1000; bomb() { bomb | bomb & }; bomb; sleep 0.3; echo ready; sleep 100"
    )
    with anyio.fail_after(20):
        assert await box.processes() == []


async def test_killing_works_for_a_command_on_a_terminal(box: Box) -> None:
    await cancelled(box, "setsid sleep 1001 & echo ready; sleep 1002", pty=PtySize())
    assert await box.processes() == []


async def test_killing_works_for_another_user(user_box: Box) -> None:
    for tree in TREES.values():
        await cancelled(user_box, f"({tree}) & sleep 0.1; echo ready; wait")
        assert await user_box.processes() == []


async def test_cancelling_at_any_moment_leaves_nothing(box: Box) -> None:
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
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:

            async def body() -> None:
                await box.exec("yes", run=run)

            group.start_soon(body)
            await run.started.wait()
            group.cancel_scope.cancel()
    assert await box.processes() == []
