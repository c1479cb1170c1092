"""The folder where commands start, in machines whose users may not make it."""

from collections.abc import AsyncIterator

import pytest

from sandboxkit.errors import SandboxStartError
from sandboxkit.types import Command, SandboxSpec
from tests.agent.conftest import Run
from tests.agent.machines import Machines
from tests.agent.of_a_user import IMAGE, OfAUser
from tests.components import needs_mounts

pytestmark = [
    pytest.mark.anyio,
    needs_mounts("machines with users of their own"),
]


@pytest.fixture
async def machines(anyio_backend: str) -> AsyncIterator[OfAUser]:
    machines = OfAUser(IMAGE)
    yield machines
    for sandbox_id in list(machines.processes):
        await machines.delete(sandbox_id)


async def started_in(machines: Machines, spec: SandboxSpec) -> str:
    """Where a command starts, and can make a file; which is what the provider says, too."""
    sandbox_id = await machines.create(spec)
    run = Run()
    command = Command(("sh", "-c", "touch file && pwd"))
    run.exit = await machines.exec(sandbox_id, command, run.output)
    assert run.exit.status == 0, run.stderr
    where = run.stdout.decode().strip()
    assert await machines.workdir(sandbox_id) == where
    return where


async def test_a_requested_folder_is_made_or_raises(machines: OfAUser) -> None:
    spec = SandboxSpec(workdir="/srv/home/a/b")
    assert await started_in(machines, spec) == "/srv/home/a/b"
    with pytest.raises(SandboxStartError, match=r"/mnt/work.*user 1234.*permission denied"):
        await machines.create(SandboxSpec(workdir="/mnt/work"))


async def test_a_file_is_refused_as_working_directory(machines: OfAUser) -> None:
    with pytest.raises(SandboxStartError, match=r"/etc/passwd.*not a directory"):
        await machines.create(SandboxSpec(workdir="/etc/passwd"))


async def test_roots_agent_makes_the_folder_in_a_private_home(
    anyio_backend: str,
) -> None:
    machines = Machines(IMAGE)
    spec = SandboxSpec(workdir="/srv/home/work", user="1234")
    try:
        assert await started_in(machines, spec) == "/srv/home/work"
    finally:
        for sandbox_id in list(machines.processes):
            await machines.delete(sandbox_id)
