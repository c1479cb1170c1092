"""Pods that are over, however, are forgotten."""

import pytest

from sandboxkit.providers.kubernetes import KubernetesProvider
from tests.kubernetes.rooms import room
from tests.traces import assert_forgotten

__all__ = ["room"]

pytestmark = pytest.mark.anyio


async def test_no_trace_is_left_of_sandboxes_that_are_over(room: str) -> None:
    await assert_forgotten(KubernetesProvider, 16)
