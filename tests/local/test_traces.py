"""Sandboxes that are over, however, are forgotten."""

import pytest

from sandboxkit.providers.local import LocalProvider, _cgroup
from tests.traces import assert_forgotten

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.nightly)])
async def test_no_state_is_kept_of_ended_sandboxes(count: int) -> None:
    memory_mb = 64 if "memory" in _cgroup.available() else None
    await assert_forgotten(LocalProvider, count, memory_mb=memory_mb)
