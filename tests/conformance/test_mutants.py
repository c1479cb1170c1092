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

from sandboxkit import Operation, SandboxError, Session
from sandboxkit.provider import Provider
from sandboxkit.testing import FakeProvider, mutants
from sandboxkit.testing._tree import kill_tree
from sandboxkit.testing.conformance import ProviderConformance, _base, kill
from sandboxkit.types import SandboxSpec
from tests.conformance import weakened

_TREES = kill._TREES

FAILURES = (AssertionError, SandboxError, TimeoutError, pytest.fail.Exception)
"""How a check fails; any other error means that the check itself is broken."""


CASES: list[tuple[type[Provider], str, str | None]] = [
    (mutants.KillsTheLeaderOnly, "test_timeout_kills_the_whole_tree", "child"),
    (mutants.KillsTheLeaderOnly, "test_kill_kills_the_whole_tree", "child"),
    (mutants.KillsTheLeaderOnly, "test_cancel_kills_the_whole_tree", "child"),
    (mutants.KillsTheGroupOnly, "test_timeout_kills_the_whole_tree", "setsid"),
    (mutants.KillsTheGroupOnly, "test_kill_kills_the_whole_tree", "double_fork"),
    (mutants.KillsTheGroupOnly, "test_cancel_kills_the_whole_tree", "env_cleared"),
    (mutants.KillsNothing, "test_timeout_kills_the_whole_tree", "child"),
    (mutants.KillsNothing, "test_timeout_kills_the_whole_tree", "ignores_signals"),
    (mutants.KillsTheNeighbours, "test_a_kill_spares_the_neighbours", None),
    (mutants.KillsTheNeighbours, "test_a_kill_spares_a_neighbours_background_child", None),
    (mutants.KillsTheGroupOnly, "test_kill_finds_an_orphan_without_environment", None),
    (mutants.WaitsForHeldOutput, "test_a_normal_end_leaves_background_children", None),
    (
        mutants.WaitsForHeldOutput,
        "test_a_background_child_that_holds_stdout_does_not_hold_up",
        None,
    ),
    (mutants.ForgetsToDelete, "test_stop_removes_it", None),
    (mutants.ForgetsToDelete, "test_closing_the_session_stops_everything", None),
    (mutants.DeletesTheRecordOnly, "test_stop_ends_its_processes", None),
    (mutants.DeletesOnce, "test_stopping_what_somebody_else_stopped_is_no_error", None),
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
    (mutants.KillsInOneSweep, "test_kill_overtakes_a_tree_that_keeps_forking", None),
    (mutants.KillsLate, "test_a_timeout_comes_in_time", None),
    (mutants.WaitsForTheNetwork, "test_network_none_fails_at_once", None),
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
    for folder in made:
        Operation(kill_tree(f"box:{folder}", None)).result(10)
        # What a mutant spared may have lost its marker and its parent, but not its directory.
        while pids := _working_in(folder):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        shutil.rmtree(folder, ignore_errors=True)


def _working_in(folder: Path) -> list[int]:
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith(f"{folder}/"):
                found.append(int(link.parent.name))
    return found


@pytest.mark.parametrize(
    ("mutant", "check", "tree"),
    CASES,
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

    class Suite(ProviderConformance):
        @classmethod
        def make_provider(cls) -> Provider:
            return mutant()

    provider = mutant()
    session = Session(provider, tags={"conformance": _base.token()})
    try:
        sandbox = session.sandbox().start().result(30)
        values = {
            "provider": provider,
            "session": session,
            "sandbox": sandbox,
            "shared": sandbox,
            "tree": _TREES.get(tree or ""),
            "tmp_path": tmp_path,
            "monkeypatch": monkeypatch,
            "number": signal.SIGTERM,
            "folder": f"/workspace/{_base.token()}",
        }
        sandbox.exec(["mkdir", str(values["folder"])], check=True).result(30)
        method = getattr(Suite(), check)
        arguments = {name: values[name] for name in inspect.signature(method).parameters}
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


def test_every_check_named_here_passes_on_a_good_provider_elsewhere() -> None:
    missing = {check for _, check, _ in CASES if not hasattr(ProviderConformance, check)}
    assert not missing
