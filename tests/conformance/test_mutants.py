"""Each check of killing, cleaning up and isolating fails on a provider that gets it wrong."""

import contextlib
import inspect
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import Operation, SandboxError, Session, Volume
from sandboxkit.provider import Provider
from sandboxkit.testing import FakeProvider
from sandboxkit.testing._tree import kill_tree
from sandboxkit.testing.conformance import (
    ProviderConformance,
    _base,
    kill,
    neighbours,
    ports,
    silence,
    starts,
    transfers,
)
from sandboxkit.testing.conformance.mounts import example_dataset
from sandboxkit.types import SandboxSpec
from tests.conformance import mutants, port_mutants, snapshot_mutants, weakened, weakened_mounts
from tests.conformance.hooks import FakeHooks

_TREES = {**kill._TREES, **kill._HIDDEN}

FAILURES = (
    AssertionError,
    SandboxError,
    TimeoutError,
    BrokenPipeError,  # the command whose input it is was lost
    RuntimeError,  # asyncio's and anyio's own, which a provider must not let out
    pytest.fail.Exception,
)
"""How a check fails; any other error means that the check itself is broken."""


CASES: list[tuple[type[Provider], str, str | None]] = [
    (mutants.KillsTheLeaderOnly, "test_timeout_kills_the_whole_tree", None),
    (mutants.KillsTheLeaderOnly, "test_kill_kills_the_whole_tree", "child"),
    (mutants.KillsTheLeaderOnly, "test_cancel_kills_the_whole_tree", "child"),
    (mutants.KillsTheGroupOnly, "test_timeout_kills_the_whole_tree", None),
    (mutants.KillsTheGroupOnly, "test_kill_kills_the_whole_tree", "double_fork"),
    (mutants.KillsTheGroupOnly, "test_cancel_kills_the_whole_tree", "env_cleared"),
    (mutants.KillsNothing, "test_timeout_kills_the_whole_tree", None),
    (mutants.KillsTheNeighbours, "test_a_kill_spares_the_neighbours", None),
    (mutants.KillsTheNeighbours, "test_a_kill_spares_a_neighbours_background_child", None),
    (mutants.KillsTheGroupOnly, "test_kill_finds_an_orphan_that_hides", "cleared"),
    (mutants.WaitsForHeldOutput, "test_a_normal_end_leaves_background_children", None),
    (
        mutants.WaitsForHeldOutput,
        "test_a_background_child_that_holds_stdout_does_not_hold_up",
        None,
    ),
    (mutants.ForgetsToDelete, "test_stop_removes_it", None),
    (mutants.ForgetsToDelete, "test_closing_the_session_stops_everything", None),
    (mutants.DeletesTheRecordOnly, "test_stop_ends_its_processes", None),
    (mutants.DeletesOnce, "test_stopping_an_already_stopped_sandbox_succeeds", None),
    (mutants.LeaksACancelledCreate, "test_stop_during_the_start_leaves_nothing", None),
    (mutants.IgnoresTheLifetime, "test_the_lifetime_ends_it", None),
    (mutants.IgnoresTheLifetime, "test_the_lifetime_ends_a_running_command", None),
    (mutants.MatchesAnyTag, "test_several_tags_are_all_required", None),
    (mutants.LeaksTheEnvironment, "test_this_machines_environment_does_not_leak", None),
    # A provider without isolation is itself the mutant of the checks that harm nothing.
    (FakeProvider, "test_the_password_file_is_not_this_machines", None),
    (FakeProvider, "test_processes_of_this_machine_are_invisible", None),
    (FakeProvider, "test_processes_of_another_sandbox_are_invisible", None),
    (FakeProvider, "test_commands_have_no_capabilities", None),
    (FakeProvider, "test_commands_cannot_gain_privileges", None),
    (FakeProvider, "test_network_none_has_a_loopback_interface_only", None),
    (FakeProvider, "test_files_of_this_machine_are_out_of_reach", None),
    (FakeProvider, "test_kill_finds_an_orphan_that_hides", "forged"),
    (FakeProvider, "test_kill_finds_an_orphan_that_hides", "twice_orphaned"),
    (FakeProvider, "test_a_timeout_finds_an_orphan_that_hides", None),
    (FakeProvider, "test_kill_finds_what_has_a_neighbours_environment", None),
    (mutants.KillsInOneSweep, "test_kill_overtakes_a_hundred_that_fork", None),
    (mutants.KillsInOneSweep, "test_kill_overtakes_a_tree_that_keeps_forking", None),
    (mutants.KillsLate, "test_a_timeout_is_kept", None),
    (mutants.WaitsForTheNetwork, "test_network_none_fails_at_once", None),
    (mutants.TakesStatusesForSignals, "test_a_program_may_exit_with_137", None),
    (mutants.TakesStatusesForSignals, "test_a_program_may_exit_with_what_a_shell_says", None),
    (mutants.TakesStatusesForSignals, "test_a_signal_from_within_is_a_signal", None),
    (mutants.TakesSignalsForExits, "test_a_signal_from_within_is_a_signal", None),
    (
        mutants.TakesStatusesForSignals,
        "test_a_signal_to_a_child_leaves_the_command_its_own_end",
        None,
    ),
    (mutants.SwallowsCancellation, "test_a_command_killed_by_its_caller_is_killed", None),
    (mutants.SwallowsCancellation, "test_a_command_past_its_timeout_timed_out", None),
    (mutants.ReportsTheMachinesUsage, "test_processor_seconds_are_true", None),
    (mutants.ReportsTheMachinesUsage, "test_peak_memory_is_true", None),
    (mutants.ReportsTheMachinesUsage, "test_what_nothing_limited_was_not_held_back", None),
    (weakened.IgnoresTheMemoryLimit, "test_out_of_memory_is_distinguished_from_a_signal", None),
    (mutants.AnswersLikeAShell, "test_a_script_without_its_interpreter_has_no_status", None),
    (mutants.AnswersLikeAShell, "test_a_folder_cannot_be_executed", None),
    (mutants.AnswersLikeAShell, "test_a_cwd_that_is_a_file", None),
    (mutants.AnswersLikeAShell, "test_variables_that_are_too_long_have_no_status", None),
    (mutants.AnswersLikeAShell, "test_a_missing_program_has_no_status", None),
    (mutants.AnswersLikeAShell, "test_what_cannot_be_executed_has_no_status", None),
    (mutants.AnswersLikeAShell, "test_nothing_starts_in_a_cwd_that_does_not_exist", None),
    (mutants.HasNoRoom, "test_many_commands_at_once_run_or_are_refused", None),
    (mutants.DropsInput, "test_any_bytes_are_input", None),
    (
        mutants.LeaksACancelledCreate,
        "test_a_cancelled_start_leaves_nothing_and_frees_its_slot",
        None,
    ),
    (
        mutants.LeaksACancelledCreate,
        "test_a_command_cancelled_before_its_sandbox_runs_leaves_nothing",
        None,
    ),
    (mutants.LosesInputBesideOthers, "test_input_reaches_its_command_beside_others", None),
    (mutants.LosesInputBesideOthers, "test_input_reaches_its_command_beside_leftovers", None),
    (mutants.LosesInputBesideOthers, "test_the_end_of_one_input_is_not_that_of_another", None),
    (mutants.LosesInputBesideOthers, "test_many_inputs_at_once_stay_apart", None),
    (mutants.LosesInputBesideOthers, "test_many_files_at_once_beside_leftovers", None),
    (mutants.LosesInputBesideOthers, "test_concurrent_terminals_lose_nothing", None),
    (mutants.KillsTheNeighbours, "test_a_kill_spares_what_an_exited_command_left", None),
    (mutants.KillsTheNeighbours, "test_a_kill_ends_one_of_two_equal_commands", None),
    (mutants.ResizesEveryTerminal, "test_a_resize_reaches_its_own_terminal_only", None),
    (mutants.HidesFileErrors, "test_uploads_that_fail_are_typed_and_leave_nothing", None),
    (mutants.LeaksADescriptor, "test_uploads_that_fail_are_typed_and_leave_nothing", None),
    (mutants.HidesFileErrors, "test_many_uploads_that_fail_at_once", None),
    (mutants.LeaksADescriptor, "test_downloads_and_reads_that_fail_leave_nothing", None),
    (mutants.LeaksADescriptor, "test_writes_that_fail_leave_nothing", None),
    (mutants.LeaksADescriptor, "test_an_upload_that_is_cancelled_leaves_nothing", None),
    (mutants.HidesFileErrors, "test_a_file_that_shrinks_while_it_goes_up", None),
    (mutants.HidesFileErrors, "test_a_file_that_vanishes_while_its_folder_goes_up", None),
    (mutants.TakesAllForMissing, "test_missing_and_refused_are_distinguished", None),
    (weakened.IgnoresTheDiskLimit, "test_a_full_disk_is_a_file_error", None),
    (mutants.EndsInAForkedChild, "test_a_forked_child_is_refused_at_once", None),
    (mutants.EndsInAForkedChild, "test_a_forked_child_ends_nothing", None),
    (mutants.EndsInAForkedChild, "test_children_come_and_go_beside_a_command", None),
    (mutants.WaitsOutTheSilence, "test_silence_is_not_a_timeout", None),
    (mutants.WaitsOutTheSilence, "test_a_silent_sandbox_can_be_stopped", None),
    (mutants.LosesPatienceAtOnce, "test_a_short_silence_changes_nothing", None),
    (mutants.RunsAgainAfterACut, "test_a_lost_connection_has_no_status", None),
    (mutants.TakesACutForAStatus, "test_a_lost_connection_has_no_status", None),
    (mutants.TakesACutForAnOutage, "test_a_lost_connection_is_not_a_timeout", None),
    (mutants.TakesACutForAnOutage, "test_a_command_whose_start_is_cut_runs_at_most_once", None),
    (mutants.RunsAgainAfterACut, "test_a_command_whose_start_is_cut_runs_at_most_once", None),
    (mutants.RunsAgainAfterACut, "test_input_is_exact_or_lost_with_its_command", None),
    (
        snapshot_mutants.InheritsTheEnvironment,
        "test_nothing_that_runs_and_nothing_secret_is_kept",
        None,
    ),
    (snapshot_mutants.SharesWrites, "test_forks_see_the_base_and_not_each_other", None),
    (snapshot_mutants.SharesWrites, "test_every_file_can_be_changed_in_a_fork", None),
    (snapshot_mutants.LosesDeletions, "test_deletions_are_kept_through_a_chain_of_snapshots", None),
    (snapshot_mutants.LosesLinksAndModes, "test_files_are_kept_as_they_were", None),
    (snapshot_mutants.KeepsOnRunning, "test_commands_stand_still_while_it_is_taken", None),
    (snapshot_mutants.KeepsOnRunning, "test_a_paused_sandbox_stands_still_and_goes_on", None),
    (snapshot_mutants.KillsAtResume, "test_a_paused_sandbox_stands_still_and_goes_on", None),
    (
        mutants.ForgetsToDelete,
        "test_a_paused_command_is_killed_and_a_paused_sandbox_is_stopped",
        None,
    ),
    (snapshot_mutants.TakesAnyKind, "test_a_kind_is_never_replaced_by_another", None),
    (snapshot_mutants.DeletesWhatIsUsed, "test_a_snapshot_in_use_is_not_deleted", None),
    (
        snapshot_mutants.IgnoresTheSnapshot,
        "test_a_missing_snapshot_is_an_error_that_names_it",
        None,
    ),
    (weakened.OpensTheNetwork, "test_network_none_has_a_loopback_interface_only", None),
    (weakened.IgnoresThePidsLimit, "test_pids_bounds_the_processes", None),
    (weakened.IgnoresTheMemoryLimit, "test_memory_is_bounded", None),
    (weakened.SharesItsFiles, "test_files_of_this_machine_are_out_of_reach", None),
    (weakened.SharesItsDisks, "test_disks_of_this_machine_are_not_there", None),
    (weakened.OpensTheKernelsSettings, "test_the_kernels_settings_are_read_only", None),
    (weakened.AllowsNamespaces, "test_namespaces_and_mounts_are_refused", None),
    (weakened.LeavesNoHeadroom, "test_a_fork_bomb_leaves_a_usable_sandbox", None),
    (weakened.TrustsItsCommands, "test_the_first_process_cannot_be_traced_or_read", None),
    (weakened.TrustsItsCommands, "test_signals_do_not_end_the_first_process", None),
    (weakened_mounts.MountsWritable, "test_a_mount_shows_the_dataset", None),
    (weakened_mounts.MountsWritable, "test_no_program_changes_or_moves_a_mount", None),
    (
        weakened_mounts.SharesWrites,
        "test_what_a_program_writes_to_a_mount_is_in_no_other_sandbox",
        None,
    ),
    (weakened_mounts.MountsAnotherDigest, "test_sandboxes_mount_what_each_asked_for", None),
    (weakened_mounts.MountsHalfFilled, "test_a_mount_shows_the_dataset", None),
    (weakened_mounts.FollowsLinks, "test_a_mount_shows_the_dataset", None),
    (weakened_mounts.ShowsTheStore, "test_a_mount_shows_nothing_else_of_the_store", None),
    (weakened_mounts.MountsOnce, "test_a_dataset_may_be_mounted_twice", None),
    (
        weakened_mounts.MountsTheWorkdirReadOnly,
        "test_the_working_directory_around_a_mount_is_writable",
        None,
    ),
    (weakened_mounts.IgnoresMounts, "test_sandboxes_mount_what_each_asked_for", None),
    (
        weakened_mounts.RemovesMountedDatasets,
        "test_copies_that_no_sandbox_uses_are_removed",
        None,
    ),
    (
        weakened_mounts.ForgetsVolumes,
        "test_what_a_sandbox_writes_to_a_volume_another_one_finds_and_changes",
        None,
    ),
    (
        weakened_mounts.GivesVolumesToTheirMaker,
        "test_what_a_sandbox_writes_to_a_volume_another_one_finds_and_changes",
        None,
    ),
    (weakened_mounts.ForgetsVolumes, "test_sandboxes_share_a_volume_while_they_run", None),
    (weakened_mounts.HasOneVolume, "test_volumes_of_other_names_are_apart", None),
    (weakened_mounts.RemovesUsedVolumes, "test_a_volume_in_use_is_not_removed", None),
    (weakened_mounts.KeepsRemovedVolumes, "test_a_volume_stays_until_it_is_removed", None),
    (
        weakened_mounts.KeepsRemovedVolumes,
        "test_removing_a_volume_that_does_not_exist_is_an_error",
        None,
    ),
    (port_mutants.DropsTheEnd, "test_a_connection_ends_each_direction_by_itself", None),
    (port_mutants.DropsTheEnd, "test_a_served_port_leads_to_an_address_of_this_side", None),
    (port_mutants.MixesConnections, "test_an_exposed_port_serves_clients_of_this_machine", None),
    (port_mutants.RepeatsAfterACut, "test_a_cut_link_repeats_and_loses_no_byte", None),
    (
        port_mutants.BuffersWithoutLimit,
        "test_an_unread_exposed_connection_holds_up_its_sender",
        None,
    ),
    (
        port_mutants.EndsRefusedConnections,
        "test_an_exposed_port_resets_a_connection_that_is_refused_inside",
        None,
    ),
    (port_mutants.AcceptsForNobody, "test_a_port_that_nothing_listens_on_refuses", None),
    (port_mutants.KeepsExposing, "test_an_exposed_port_is_closed_with_its_connections", None),
    (port_mutants.KeepsServing, "test_a_closed_served_port_refuses", None),
    (
        port_mutants.ServesOneByOne,
        "test_connections_that_wait_stop_no_other_one_of_a_served_port",
        None,
    ),
    (port_mutants.ServesAnotherPort, "test_a_port_that_is_taken_is_refused", None),
    # Its sandboxes have the ports of this machine.
    (FakeProvider, "test_a_served_port_is_that_of_its_sandbox", None),
    (FakeProvider, "test_a_connection_does_not_reach_a_port_of_this_machine", None),
]


# One look may find everything, on a machine that is busy enough.
_CHANCES: dict[type[Provider], int] = {mutants.KillsInOneSweep: 5}


@pytest.fixture(scope="module", autouse=True)
def what_weakened_providers_need() -> Iterator[None]:
    """Removed after the last of these tests."""
    yield
    for folder in weakened.made:
        shutil.rmtree(folder)


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The folders of all fake sandboxes that were made; what mutants leave there is removed."""
    made: list[Path] = []
    create = FakeProvider.create

    async def recording(self: FakeProvider, spec: SandboxSpec) -> str:
        sandbox_id = await create(self, spec)
        made.append(self._boxes[sandbox_id].folder)
        return sandbox_id

    monkeypatch.setattr(FakeProvider, "create", recording)
    yield made
    for descriptor in mutants.LeaksADescriptor.leaked:
        os.close(descriptor)
    mutants.LeaksADescriptor.leaked.clear()
    for folder in made:
        Operation(kill_tree(f"box:{folder}", None)).result(60)
        # What a mutant spared may have lost its marker and its parent, but not its directory.
        while pids := _working_in(folder):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        shutil.rmtree(folder, ignore_errors=True)


def _large(folder: Path) -> Path:
    path = folder / "large" / "file"
    path.parent.mkdir()
    path.write_bytes(bytes(30 << 20))
    return path


def _working_in(folder: Path) -> list[int]:
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith(f"{folder}/"):
                found.append(int(link.parent.name))
    return found


@pytest.mark.parametrize(
    ("mutant", "check", "tree"),
    # What forks faster than a mutant kills takes the processes that other tests need.
    [
        pytest.param(*case, marks=pytest.mark.alone) if case[0] in _CHANCES else case
        for case in CASES
    ],
    ids=[f"{mutant.__name__}-{check}-{tree}" for mutant, check, tree in CASES],
)
def test_the_check_fails_on_its_mutant(
    mutant: type[Provider],
    check: str,
    tree: str | None,
    folders: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_base.until, "__defaults__", (3.0,))
    for module, name, seconds in (
        (neighbours, "DEADLINE", 5.0),
        (ports, "DEADLINE", 2.0),
        (silence, "DEADLINE", 5.0),
        (starts, "_UNDONE", 3.0),
        (transfers, "_SETTLED", 1.0),
    ):
        monkeypatch.setattr(module, name, seconds)
    if issubclass(mutant, port_mutants.Patched):
        for owner, name, replacement in mutant.patches:
            monkeypatch.setattr(owner, name, replacement)

    class Suite(FakeHooks, ProviderConformance):
        silence_bound = 4.0

        @classmethod
        def make_provider(cls) -> Provider:
            return mutant()

    # In a store of the test's own, and before the provider looks for it.
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    dataset, mounts = None, {}
    if mutant.__module__ == weakened_mounts.__name__:
        dataset = example_dataset(tmp_path / "dataset")
        mounts = {"/data": dataset, "/workspace/given": dataset}
    provider = mutant()
    session = Session(provider, tags={"conformance": _base.token()}, mounts=mounts)
    try:
        sandbox = session.sandbox().start().result(30)
        values = {
            "provider": provider,
            "session": session,
            "sandbox": sandbox,
            "shared": sandbox,
            "mounting": provider,
            "mounted": sandbox,
            "dataset": dataset,
            "writing": provider,
            "volume": Volume("test"),
            "taking": session,
            "each": session,
            "pausing": session,
            "tree": _TREES.get(tree or ""),
            "large": _large(tmp_path),
            "end": "close",
            "delay": 0.05,
            "tmp_path": tmp_path,
            "monkeypatch": monkeypatch,
            "folder": f"/workspace/{_base.token()}",
        }
        method = getattr(Suite(), check)
        arguments = {name: values[name] for name in inspect.signature(method).parameters}
        if "folder" in arguments:
            sandbox.exec(["mkdir", str(values["folder"])], check=True).result(30)
        for _ in range(_CHANCES.get(mutant, 1)):
            try:
                method(**arguments)
            except FAILURES:
                break
        else:
            pytest.fail(f"{check} passes on {mutant.__name__}")
    finally:
        try:
            session.close().result(30)
        except Exception:  # noqa: BLE001 - closing through a mutant may fail; `folders` cleans up
            pass
        Operation(provider.aclose()).result(10)
        while port_mutants.leaked:
            Operation(port_mutants.leaked.pop()()).result(10)


def test_every_check_named_here_passes_on_a_good_provider_elsewhere() -> None:
    missing = {check for _, check, _ in CASES if not hasattr(ProviderConformance, check)}
    assert not missing
