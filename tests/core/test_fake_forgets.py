"""FakeProvider forgets sandboxes that are over, however."""

import pytest

from sandboxkit import Operation
from sandboxkit.testing import FakeProvider
from tests.traces import traces, use_up

pytestmark = pytest.mark.anyio


async def test_no_trace_is_left_of_sandboxes_that_are_over() -> None:
    provider = FakeProvider()
    ids = await use_up(provider, None, 200)
    assert len(ids) == 200
    assert traces(provider, ids) == []
    await Operation(provider.aclose())
