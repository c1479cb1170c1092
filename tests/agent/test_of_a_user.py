"""Machines whose programs are a user's, as with an image that says USER: folders, and who traces whom."""

from collections.abc import AsyncIterator

import pytest

from sandboxkit.errors import SandboxStartError
from sandboxkit.providers._hosted.agent import ProgramStream
from tests.agent.conftest import PROGRAMS
from tests.agent.machines import Machine, Machines, started
from tests.components import needs_mounts

pytestmark = [pytest.mark.anyio, needs_mounts("machines with users of their own")]

USER = ("setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", "--inh-caps=-all")


class OfAUser(Machines):
    """The agent is of the same user as the commands, and as the vendor's daemon."""

    async def _run(self, sandbox_id: str, argv: tuple[str, ...]) -> ProgramStream:
        return await super()._run(sandbox_id, (*USER, "env", "HOME=/srv/home", *argv))


@pytest.fixture(params=[OfAUser])
async def machines(anyio_backend: str, request: pytest.FixtureRequest) -> AsyncIterator[Machines]:
    machines: Machines = request.param(PROGRAMS["image_of_a_user"])
    yield machines
    await machines.clear()


async def starts_in(machine: Machine) -> str:
    """Where a command starts, and can make a file; which is what the provider says, too."""
    run = await machine.sh("touch file && pwd")
    assert run.status == 0, run.stderr
    where = run.stdout.decode().strip()
    assert await machine.provider.workdir(machine.id) == where
    return where


async def test_a_requested_folder_is_made_or_raises(machines: Machines) -> None:
    assert await starts_in(await started(machines, "/srv/home/a/b")) == "/srv/home/a/b"
    with pytest.raises(SandboxStartError, match=r"/mnt/work.*user 1234.*permission denied"):
        await started(machines, "/mnt/work")
    with pytest.raises(SandboxStartError, match=r"/etc/passwd.*not a directory"):
        await started(machines, "/etc/passwd")


@pytest.mark.parametrize("machines", [Machines], indirect=True)
async def test_roots_agent_makes_the_folder_in_a_private_home(machines: Machines) -> None:
    machine = await started(machines, "/srv/home/work", user="1234")
    assert await starts_in(machine) == "/srv/home/work"


async def test_a_command_attaches_to_nothing_and_traces_what_it_starts(machines: Machines) -> None:
    """The vendor's daemon is of the commands' user here."""
    machine = await started(machines, "/srv/home/work")
    await machine.program(*USER, "sleep", "1000")
    run = await machine.exec("/usr/bin/python3", "-c", PROGRAMS["attach"])
    assert run.stdout == b"-1 1\n-1 1\nTrue\n", run.stderr
