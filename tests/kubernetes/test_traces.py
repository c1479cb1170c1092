"""Pods that are over, however, are forgotten."""

import pytest

from sandboxkit.providers.kubernetes import KubernetesProvider
from tests.kubernetes.rooms import room
from tests.traces import assert_forgotten

__all__ = ["room"]

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("count", [16, pytest.param(200, marks=pytest.mark.nightly)])
async def test_no_state_is_kept_of_ended_sandboxes(room: str, count: int) -> None:
    await assert_forgotten(KubernetesProvider, count)
