"""Sandboxes that are over, however, are forgotten."""

import pytest

from sandboxkit.providers.daytona import DaytonaProvider
from tests.emulators._server import Server
from tests.traces import assert_forgotten

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.nightly)])
async def test_no_trace_is_left_of_sandboxes_that_are_over(server: Server, count: int) -> None:
    await assert_forgotten(DaytonaProvider, count)
