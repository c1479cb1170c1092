"""Sandboxes that are over, however, are forgotten."""

import pytest

from sandboxkit.providers.modal import ModalProvider
from tests.emulators.modal.client import ModalEmulator
from tests.traces import assert_forgotten

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.nightly)])
async def test_no_state_is_kept_of_ended_sandboxes(emulator: ModalEmulator, count: int) -> None:
    await assert_forgotten(ModalProvider, count)
