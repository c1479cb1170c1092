"""Inspect's view of a sandbox, on each backend."""

import os
from collections.abc import AsyncIterator

import pytest
from inspect_ai.util import SandboxEnvironment

from sandboxkit.integrations.inspect import SandboxkitConfig, SandboxkitEnvironment
from tests.examples.docker_here import TEST_IMAGE, docker_problem


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["local", "docker"])
def provider(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name = str(request.param)
    if name == "docker":
        monkeypatch.setenv(
            "SANDBOXKIT_DOCKER_IMAGE", os.environ.get("SANDBOXKIT_DOCKER_IMAGE", TEST_IMAGE)
        )
        if problem := docker_problem():
            if os.environ.get("SANDBOXKIT_REQUIRE_DOCKER"):
                pytest.fail(problem)
            pytest.skip(problem)
    return name


@pytest.fixture
async def environment(provider: str, anyio_backend: str) -> AsyncIterator[SandboxEnvironment]:
    config = SandboxkitConfig(provider=provider)
    environments = await SandboxkitEnvironment.sample_init("test", config, {})
    yield environments["default"]
    await SandboxkitEnvironment.sample_cleanup("test", config, environments, False)
