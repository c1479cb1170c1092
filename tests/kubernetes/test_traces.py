"""Pods that are over, however, are forgotten."""

import pytest

from sandboxkit.providers.kubernetes import KubernetesProvider
from tests.traces import assert_forgotten

pytestmark = pytest.mark.anyio
MANY = pytest.param(200, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])


@pytest.mark.parametrize("count", [8, MANY])
async def test_no_state_is_kept_of_ended_sandboxes(room: str, count: int) -> None:
    await assert_forgotten(KubernetesProvider, count)
