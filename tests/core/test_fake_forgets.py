"""FakeProvider forgets sandboxes that are over, however."""

import pytest

from sandboxkit import Operation
from sandboxkit.testing import FakeProvider
from tests.traces import traces, use_up

pytestmark = pytest.mark.anyio


async def test_no_state_is_kept_of_ended_sandboxes() -> None:
    provider = FakeProvider()
    ids = await use_up(provider, None, 200)
    assert len(ids) == 200
    assert traces(provider, ids) == []
    await Operation(provider.aclose())
