"""The agent's own tests, in machines with an arm64 processor, which qemu emulates."""

import importlib
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxkit.providers._agent import binary
from sandboxkit.providers._agent.launch import agent_flags
from sandboxkit.types import SandboxSpec
from tests.agent import test_kill
from tests.agent.conftest import Box, NamespaceBox, NamespaceProvider, any_box, made
from tests.components import require_program, require_root
from tests.data_here import beside

__all__ = ["any_box"]
SCRIPT = str(Path(__file__).parents[2] / "scripts" / "arm64.sh")
pytestmark = [pytest.mark.nightly, pytest.mark.anyio]
for file, names in beside(__file__, "arm64.toml").items():
    found = importlib.import_module(f"tests.agent.{file}")
    globals().update((name, getattr(found, name)) for name in names)


class Arm64Box(NamespaceBox):
    """A machine; its first process is the agent."""

    def _argv(self, spec: SandboxSpec, listen_fd: int) -> list[str]:
        return [SCRIPT, str(binary.path("arm64")), *agent_flags(spec)]

    def _starved(self) -> bool:
        return True  # an emulated processor is a slow one


@pytest.fixture(scope="module")
async def provider(anyio_backend: str) -> AsyncIterator[NamespaceProvider]:
    require_root("debootstrap makes the machine's files")
    for program in ("qemu-system-aarch64", "debootstrap", "busybox"):
        require_program(program)
    subprocess.run([SCRIPT, "build"], check=True)
    with tempfile.TemporaryDirectory(prefix="agent-test-") as folder:
        provider = NamespaceProvider(Path(folder), Arm64Box)
        yield provider
        for box in provider.made:
            await box.delete()


@pytest.fixture(scope="module")
async def machine(provider: NamespaceProvider) -> Box:
    return await made(provider, env={"SPEC": "spec"})


@pytest.fixture(scope="module")
async def users_machine(provider: NamespaceProvider) -> Box:
    return await made(provider, user="nobody")


async def emptied(box: Box) -> AsyncIterator[Box]:
    """Yield it; afterwards end its processes and remove its files."""
    yield box
    await box.sh("kill -KILL -1")
    await box.sh(f"rm -rf {box.workdir}/*")


@pytest.fixture
async def box(machine: Box) -> AsyncIterator[Box]:
    async for each in emptied(machine):
        yield each


@pytest.fixture
async def user_box(users_machine: Box) -> AsyncIterator[Box]:
    async for each in emptied(users_machine):
        yield each


@pytest.mark.parametrize("tree", [each for each in test_kill.TREES if "forks" not in each])
async def test_a_kill_ends_every_tree_that_forks_slower_than_the_emulation(
    any_box: Box, tree: str
) -> None:
    await test_kill.test_cancelling_spares_other_commands(any_box, tree)
