"""Sandboxes that are over, however, are forgotten."""

import pytest

from sandboxkit.providers.docker import DockerProvider
from tests.traces import assert_forgotten

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.nightly)])
async def test_no_state_is_kept_of_ended_sandboxes(daemon: None, count: int) -> None:
    await assert_forgotten(DockerProvider, count, memory_mb=64)
