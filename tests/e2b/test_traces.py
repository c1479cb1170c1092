"""Sandboxes that are over, however, are forgotten."""

import pytest

from sandboxkit.providers.e2b import E2BProvider
from tests.e2b.server import E2BServer
from tests.traces import assert_forgotten

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.nightly)])
async def test_no_state_is_kept_of_ended_sandboxes(server: E2BServer, count: int) -> None:
    await assert_forgotten(E2BProvider, count)
