"""Sandboxes that are over, however, are forgotten."""

import pytest

from sandboxkit.providers.daytona import DaytonaProvider
from tests.emulators._server import Server
from tests.traces import assert_forgotten

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.nightly)])
async def test_no_state_is_kept_of_ended_sandboxes(server: Server, count: int) -> None:
    await assert_forgotten(DaytonaProvider, count)
