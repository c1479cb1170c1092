"""Which checks of the contract wait for the night, by `chosen.toml`."""

import pytest

from tests.conformance.hooks import VendorHooks
from tests.data_here import beside

CHOSEN = beside(__file__, "chosen.toml")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the checks that wait."""
    for item in items:
        if isinstance(item, pytest.Function) and item.cls is not None:
            name, file = item.function.__name__, item.path.stem
            suite = "vendors" if issubclass(item.cls, VendorHooks) else file
            by_day = CHOSEN["by_day"].get(file, [name])
            if name in CHOSEN["at_night"].get(suite, ()) or name not in by_day:
                item.add_marker(pytest.mark.nightly)
