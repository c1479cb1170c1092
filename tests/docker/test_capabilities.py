"""Capabilities that are added for root's commands, as installing packages needs them."""

import pytest

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.types import SandboxSpec
from tests.docker.conftest import Box

pytestmark = pytest.mark.anyio

FOR_PACKAGES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID")

OWN = "print(open('/proc/self/status').read().split('CapEff:\\t')[1].split()[0])"
CHANGE = "import os; open('/tmp/f', 'w'); os.chown('/tmp/f', 65534, 65534); print('changed')"
TRACE = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"


async def test_root_has_only_the_added_capabilities(tag: str, daemon: None) -> None:
    provider = DockerProvider(capabilities=["cap_chown", *FOR_PACKAGES])
    try:
        sandbox_id = await provider.create(SandboxSpec(tags={"test": tag}, user="root"))
        box = Box(provider, sandbox_id)
        assert int(await box.python(OWN), 16) == 1 << 0 | 1 << 1 | 1 << 3 | 1 << 6 | 1 << 7
        assert await box.python(CHANGE) == "changed"
        assert await box.python(TRACE) == "-1", "the agent has one that they have not"
        await provider.delete(sandbox_id)
    finally:
        await provider.aclose()


async def test_other_users_have_no_capabilities(tag: str, daemon: None) -> None:
    provider = DockerProvider(capabilities=FOR_PACKAGES)
    try:
        sandbox_id = await provider.create(SandboxSpec(tags={"test": tag}, user="nobody"))
        assert int(await Box(provider, sandbox_id).python(OWN), 16) == 0
        await provider.delete(sandbox_id)
    finally:
        await provider.aclose()


@pytest.mark.parametrize("name", ["SYS_ADMIN", "KILL", "SYS_PTRACE", "chown "])
def test_capabilities_that_break_isolation_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be added; use one of CHOWN"):
        DockerProvider(capabilities=[name])
