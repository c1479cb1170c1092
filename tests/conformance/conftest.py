"""Which checks of the contract wait for `make nightly`: on a vendor, those of the agent alone.

A suite with a set `in_each_run` names the checks that do not wait.
"""

import inspect
from collections.abc import Callable

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

BY_THE_PROVIDER = {
    "test_20_mb_make_the_round_trip",
    "test_network_none_fails_at_once",
    "test_network_none_has_a_loopback_interface_only",
    "test_pty_is_a_terminal_of_the_size_asked_for",
    "test_user_is_honoured_or_refused",
}
"""What else is a vendor's: what its connection carries, and what is asked for as a sandbox is made."""

OF_THE_LINK = {
    "test_100_mb_of_unread_output_use_bounded_memory",
    "test_a_file_that_vanishes_while_its_folder_goes_up",
    "test_a_slow_reader_blocks_the_command",
    "test_children_come_and_go_beside_a_command",
    "test_downloads_and_reads_that_fail_leave_nothing",
    "test_two_hundred_commands_in_a_row_leave_nothing",
    "test_uploads_that_fail_are_typed_and_leave_nothing",
    "test_writes_that_fail_leave_nothing",
}
"""Long checks of the agent's link, whose ends are the same with all providers. The 100 MB that a command
prints, and the 20 MB of a file, cross each vendor's connection every time."""


def waits(suite: type, check: Callable[..., object]) -> bool:
    """Whether a check waits: it is of the agent alone, and the agent a vendor's guest."""
    chosen: frozenset[str] | None = getattr(suite, "in_each_run", None)
    if chosen is not None:
        return check.__name__ not in chosen
    if not issubclass(suite, VendorHooks):
        return False
    return check.__name__ in OF_THE_LINK or (
        any(vars(part).get(check.__name__) is check for part in OF_THE_AGENT)
        and check.__name__ not in BY_THE_PROVIDER
        and OF_THE_PROVIDER.isdisjoint(inspect.signature(check).parameters)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them."""
    for item in items:
        if isinstance(item, pytest.Function) and item.cls and waits(item.cls, item.function):
            item.add_marker(pytest.mark.nightly)
