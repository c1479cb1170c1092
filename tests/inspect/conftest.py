"""Inspect's view of a sandbox, on each backend."""

from collections.abc import AsyncIterator

import pytest
from inspect_ai.util import SandboxEnvironment

from sandboxkit.integrations.inspect import SandboxkitConfig, SandboxkitEnvironment
from tests.docker_here import require_docker


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["local", "docker"])
def provider(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name == "docker":
        require_docker()
    return name


@pytest.fixture
async def environment(provider: str, anyio_backend: str) -> AsyncIterator[SandboxEnvironment]:
    config = SandboxkitConfig(provider=provider)
    environments = await SandboxkitEnvironment.sample_init("test", config, {})
    yield environments["default"]
    await SandboxkitEnvironment.sample_cleanup("test", config, environments, False)
