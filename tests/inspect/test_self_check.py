"""Inspect's own published checks of a sandbox environment."""

from typing import Any

import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - pytest collects the checks

from tests.docker_here import require_docker

pytestmark = pytest.mark.anyio

# The check makes a user with adduser. That is impossible by design: a local sandbox has one user,
# and root in a docker one has no capability, so it cannot write /etc/gshadow.
# test_environment.py checks what is possible instead.
EXCEPTIONS = {
    ("test_exec_as_user", "local"): "a local sandbox has one user",
    ("test_exec_as_user", "docker"): "root in a sandbox has no capabilities",
}


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.nightly)])
def provider(request: pytest.FixtureRequest) -> str:
    """Return the backend. Docker shows what is checked here in tests/conformance/test_docker.py each time."""
    if request.param == "docker":
        require_docker()
    return str(request.param)


@pytest.fixture
def sandbox_env(request: Any, environment: SandboxEnvironment, provider: str) -> SandboxEnvironment:
    if reason := EXCEPTIONS.get((request.node.originalname, provider)):
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    return environment
