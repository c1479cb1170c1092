"""Inspect's view of a sandbox, on each backend."""

from collections.abc import AsyncIterator

import pytest
from inspect_ai.util import SandboxEnvironment

from sandboxkit.integrations.inspect import SandboxkitConfig, SandboxkitSandboxEnvironment
from tests.docker_here import require_docker


@pytest.fixture(params=["local", "docker"])
def provider(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name == "docker":
        require_docker()
    return name


@pytest.fixture
async def environment(provider: str, anyio_backend: str) -> AsyncIterator[SandboxEnvironment]:
    config = SandboxkitConfig(provider=provider)
    environments = await SandboxkitSandboxEnvironment.sample_init("test", config, {})
    yield environments["default"]
    await SandboxkitSandboxEnvironment.sample_cleanup("test", config, environments, False)
