"""Sandboxes that are over, however, are forgotten."""

import pytest

from sandboxkit.providers.docker import DockerProvider
from tests.traces import assert_forgotten

pytestmark = pytest.mark.anyio


async def test_no_state_is_kept_of_ended_sandboxes(daemon: None) -> None:
    await assert_forgotten(DockerProvider, 24, memory_mb=64)
