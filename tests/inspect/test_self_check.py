"""Inspect's own published checks of a sandbox environment."""

import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - pytest collects the checks

pytestmark = pytest.mark.anyio


@pytest.fixture
def sandbox_env(environment: SandboxEnvironment) -> SandboxEnvironment:
    return environment
