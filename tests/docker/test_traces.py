"""Sandboxes that are over, however, are forgotten."""

import pytest

from sandboxkit.providers.docker import DockerProvider
from tests.traces import assert_forgotten

pytestmark = pytest.mark.anyio


async def test_no_trace_is_left_of_sandboxes_that_are_over(daemon: None) -> None:
    await assert_forgotten(DockerProvider, 24, memory_mb=64)
