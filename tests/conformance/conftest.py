"""Which checks of the contract wait: on a cluster, a vendor or a service, all but a list.

`make test-vendors-contract` and `make test-cluster-contract` run the others, and `make nightly` those of the agent alone on a
vendor. A suite that has a set `in_each_run` of its own leaves all other checks to `make nightly`; one that
has a set `at_night`, those; one with a set `before_test_cluster` leaves all others to `make test-cluster-contract`.
"""

import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxkit.testing.conformance.endings import EndingsConformance
from sandboxkit.testing.conformance.exec import ExecConformance, TerminalConformance
from sandboxkit.testing.conformance.files import FilesConformance
from sandboxkit.testing.conformance.isolation import IsolationConformance
from sandboxkit.testing.conformance.kill import KillConformance, StrongKillConformance
from sandboxkit.testing.conformance.neighbours import (
    NeighboursConformance,
    TerminalNeighboursConformance,
)
from sandboxkit.testing.conformance.starts import CommandStartConformance
from tests.conformance.hooks import VendorHooks

OF_THE_AGENT = (
    CommandStartConformance,
    EndingsConformance,
    ExecConformance,
    FilesConformance,
    IsolationConformance,
    KillConformance,
    NeighboursConformance,
    StrongKillConformance,
    TerminalConformance,
    TerminalNeighboursConformance,
)
"""What these check happens in the sandbox, by the agent, which is the same with all providers."""

OF_THE_PROVIDER = {"provider", "sandbox", "session"}
"""Who asks for one of these has the provider make or end sandboxes, and look after them."""

_CHOSEN = tomllib.loads(Path(__file__).with_name("chosen.toml").read_text())
BY_THE_PROVIDER = frozenset(_CHOSEN["by_the_provider"])
OF_THE_LINK = frozenset(_CHOSEN["of_the_link"])
ON_VENDORS = frozenset(_CHOSEN["on_vendors"])
ON_CLUSTER = ON_VENDORS | frozenset(_CHOSEN["on_cluster"])


def waits(suite: type, check: Callable[..., object]) -> bool:
    """Return whether a check waits for the night: on a vendor, a check of the agent alone."""
    chosen: frozenset[str] | None = getattr(suite, "in_each_run", None)
    if chosen is not None:
        return check.__name__ not in chosen
    if check.__name__ in getattr(suite, "at_night", ()):
        return True
    if not issubclass(suite, VendorHooks):
        return False
    return check.__name__ in OF_THE_LINK or (
        any(vars(part).get(check.__name__) is check for part in OF_THE_AGENT)
        and check.__name__ not in BY_THE_PROVIDER
        and OF_THE_PROVIDER.isdisjoint(inspect.signature(check).parameters)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the checks that wait."""
    for item in items:
        if not isinstance(item, pytest.Function) or item.cls is None:
            continue
        if issubclass(item.cls, VendorHooks) and item.function.__name__ in ON_VENDORS:
            continue
        if waits(item.cls, item.function):
            item.add_marker(pytest.mark.nightly)
        elif issubclass(item.cls, VendorHooks):
            item.add_marker(pytest.mark.vendors)
        elif item.function.__name__ not in getattr(
            item.cls, "before_test_cluster", [item.function.__name__]
        ):
            item.add_marker(pytest.mark.cluster)
