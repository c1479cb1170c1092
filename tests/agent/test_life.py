"""How a sandbox ends: its deadline, its owner, and what calls in flight are told."""

import anyio
import pytest

from sandboxkit.errors import (
    ConfigurationError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.types import SandboxSpec
from tests.agent.conftest import Box, NamespaceProvider, Run

pytestmark = pytest.mark.anyio


def spec(provider: NamespaceProvider, **fields: object) -> SandboxSpec:
    return SandboxSpec(workdir=str(provider.folder / "work"), **fields)  # type: ignore[arg-type]


async def ended(provider: NamespaceProvider, sandbox_id: str) -> None:
    with anyio.fail_after(60):
        await provider.processes[sandbox_id].wait()


async def test_the_lifetime_ends_the_sandbox_and_says_so(provider: NamespaceProvider) -> None:
    sandbox_id = await provider.create(spec(provider, lifetime=3.0))
    box = Box(provider, sandbox_id, provider.folder / "work")
    with pytest.raises(SandboxTerminatedError, match="lifetime"):
        await box.sh("trap '' TERM INT; sleep 1000")
    await ended(provider, sandbox_id)
    with pytest.raises((SandboxNotFoundError, SandboxTerminatedError)):
        await box.exec("true")


async def test_a_stopped_command_cannot_delay_the_end_of_the_lifetime(
    provider: NamespaceProvider,
) -> None:
    sandbox_id = await provider.create(spec(provider, lifetime=60))
    box, run = Box(provider, sandbox_id, provider.folder / "work"), Run()
    async with anyio.create_task_group() as group:

        async def shorten() -> None:
            await run.started.wait()
            await provider.renew(sandbox_id, 0.1)

        group.start_soon(shorten)
        script = "kill -STOP 1; kill -9 1; kill -TERM 1; echo; kill -STOP -1; sleep 100"
        with pytest.raises(SandboxTerminatedError):
            await box.sh(script, run=run)
    await ended(provider, sandbox_id)


async def test_renewing_moves_the_deadline_both_ways(provider: NamespaceProvider) -> None:
    sandbox_id = await provider.create(spec(provider, lifetime=3.0))
    box = Box(provider, sandbox_id, provider.folder / "work")
    await provider.renew(sandbox_id, 600)
    assert (await box.exec("sleep", "3.1")).status == 0
    await provider.renew(sandbox_id, 0.1)
    await ended(provider, sandbox_id)
    with pytest.raises(ConfigurationError):
        await provider.renew(sandbox_id, -1)


async def test_the_sandbox_ends_with_its_owners_stream(provider: NamespaceProvider) -> None:
    sandbox_id = await provider.create(spec(provider))
    await provider._forget(sandbox_id)
    await ended(provider, sandbox_id)


async def test_a_detached_sandbox_outlives_its_owner(provider: NamespaceProvider) -> None:
    sandbox_id = await provider.create(spec(provider, detach=True))
    box = Box(provider, sandbox_id, provider.folder / "work")
    await box.sh("sleep 1000 & echo started")
    await provider._forget(sandbox_id)
    await box.settled("sleep 1000")


async def test_calls_in_flight_fail_when_the_agent_is_killed(box: Box) -> None:
    run = Run()

    async def kill() -> None:
        await run.started.wait()
        box.provider.processes[box.id].kill()

    async with anyio.create_task_group() as group:
        group.start_soon(kill)
        with pytest.raises(SandboxTerminatedError):
            await box.sh("echo up; sleep 1000", run=run)


async def test_a_second_client_works_and_its_end_kills_only_its_commands(box: Box) -> None:
    other = NamespaceProvider(box.provider.folder)
    guest = Box(other, box.id, box.workdir)
    assert (await guest.sh("echo $SPEC")).stdout == b"spec\n"
    run = Run()
    async with anyio.create_task_group() as group:

        async def body() -> None:
            with pytest.raises(SandboxTerminatedError):
                await guest.sh("setsid sleep 1001 & echo up; wait", run=run)

        group.start_soon(body)
        await run.started.wait()
        await box.sh("sleep 2001 &")
        await other.aclose()
    await box.settled("sleep 2001")


async def test_the_main_command_is_logged_and_waited_for(provider: NamespaceProvider) -> None:
    command = ("sh", "-c", "echo out; echo err >&2; sleep 0.2; exit 5")
    sandbox_id = await provider.create(spec(provider, command=command))
    assert await provider.wait(sandbox_id) == 5
    assert sorted((await provider.logs(sandbox_id)).split()) == [b"err", b"out"]


async def test_the_log_keeps_the_newest_mebibyte(provider: NamespaceProvider) -> None:
    command = ("sh", "-c", "seq 1000000; echo last")
    sandbox_id = await provider.create(spec(provider, command=command))
    await provider.wait(sandbox_id)
    log = await provider.logs(sandbox_id)
    assert 1 << 20 <= len(log) <= 2 << 20
    assert log.endswith(b"\n999999\n1000000\nlast\n")


async def test_waiting_for_the_main_command_can_be_cancelled(provider: NamespaceProvider) -> None:
    sandbox_id = await provider.create(spec(provider, command=("sleep", "1000")))
    with anyio.move_on_after(0.05) as scope:
        await provider.wait(sandbox_id)
    assert scope.cancelled_caught
    assert await provider.logs(sandbox_id) == b""


async def test_waiting_without_a_main_command_is_refused(box: Box) -> None:
    with pytest.raises(ConfigurationError, match="no main command"):
        await box.provider.wait(box.id)


async def test_a_user_that_does_not_exist_fails_the_start(provider: NamespaceProvider) -> None:
    with pytest.raises(SandboxStartError, match="nosuchuser"):
        await provider.create(spec(provider, user="nosuchuser"))
