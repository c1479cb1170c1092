"""Which checks of the contract wait: on a cluster, a vendor or a service, all but a list.

`make test-vendors` and `make test-cluster` run the others, and `make nightly` those of the agent alone on a
vendor. A suite that has a set `in_each_run` of its own leaves all other checks to `make nightly`; one that
has a set `at_night`, those; one with a set `before_test_cluster` leaves all others to `make test-cluster`.
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
"""Long checks of the agent's link, whose ends are the same with all providers."""


ON_VENDORS = {
    # How a sandbox is made, described, found and ended.
    "test_a_cancelled_start_leaves_nothing_and_frees_its_slot",
    "test_a_listing_describes_what_it_lists",
    "test_another_process_stops_it",
    "test_another_process_uses_it",
    "test_exec_in_an_ended_sandbox_is_a_typed_error",
    "test_files_of_the_spec_are_there_first",
    "test_from_id_of_an_unknown_sandbox",
    "test_logs_and_status_of_a_main_command",
    "test_renew_extends_the_lifetime",
    "test_several_tags_are_all_required",
    "test_stop_during_the_start_leaves_nothing",
    "test_stop_ends_its_processes",
    "test_stop_removes_it",
    "test_stopping_an_already_stopped_sandbox_succeeds",
    "test_tags_are_stored_completely",
    "test_the_lifetime_ends_a_running_command",
    # Options that a provider implements or refuses.
    "test_a_fork_bomb_leaves_a_usable_sandbox",
    "test_a_full_disk_is_a_file_error",
    "test_a_public_address_says_who_can_reach_it",
    "test_commands_start_in_the_workdir",
    "test_memory_is_bounded",
    "test_mounts_are_honoured_or_refused_before_anything_is_made",
    "test_network_none_fails_at_once",
    "test_network_none_has_a_loopback_interface_only",
    "test_pids_bounds_the_processes",
    "test_processes_of_another_sandbox_are_invisible",
    "test_secrets_are_variables_that_no_listing_shows",
    "test_this_machines_environment_does_not_leak",
    "test_user_is_honoured_or_refused",
    "test_variables_of_any_name_reach_the_command",
    "test_volumes_are_honoured_or_refused_before_anything_is_made",
    # Snapshots, and the pause of a vendor that has one.
    "test_a_missing_snapshot_is_an_error_that_names_it",
    "test_a_paused_sandbox_stands_still_and_goes_on",
    "test_a_snapshot_in_use_is_not_deleted",
    "test_forks_see_the_base_and_not_each_other",
    "test_nothing_that_runs_and_nothing_secret_is_kept",
    "test_snapshots_are_listed_by_tag_and_deleted",
    "test_snapshots_are_taken_or_refused_before_anything_is_made",
    # The connection that carries commands and files.
    "test_20_mb_make_the_round_trip",
    "test_a_command_killed_by_its_caller_is_killed",
    "test_a_command_past_its_timeout_timed_out",
    "test_a_lost_connection_has_no_status",
    "test_a_lost_connection_is_not_a_timeout",
    "test_a_short_silence_changes_nothing",
    "test_binary_output_is_exact",
    "test_binary_stdin_is_exact",
    "test_pty_is_a_terminal_of_the_size_asked_for",
}
"""The checks that `make test` runs on each vendor and on a service. The client and the agent are those of the
local provider, on which `make test` runs every check."""


ON_CLUSTER = ON_VENDORS | {
    # Claims that hold datasets and volumes, and pods with several containers.
    "test_a_mount_shows_the_dataset",
    "test_a_volume_in_use_is_not_removed",
    "test_what_a_sandbox_writes_to_a_volume_another_one_finds_and_changes",
    # Security of a pod.
    "test_commands_cannot_gain_privileges",
    "test_commands_have_no_capabilities",
    "test_files_of_this_machine_are_out_of_reach",
    "test_processes_of_this_machine_are_invisible",
    # Ends that the cluster notices.
    "test_an_adopted_sandbox_ends_with_its_new_session",
    "test_closing_the_session_stops_everything",
    "test_out_of_memory_is_distinguished_from_a_signal",
    "test_the_lifetime_ends_it",
    # Ports, which the exec call carries.
    "test_a_connection_ends_each_direction_by_itself",
    "test_a_served_port_is_that_of_its_sandbox",
}
"""The checks that `make test` runs on the cluster's pods."""


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
