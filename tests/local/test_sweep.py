"""What dead clients left goes with the next start; what lives, wherever, stays."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import anyio
import pytest

from sandboxkit.errors import CapacityError, SandboxNotFoundError, SandboxTerminatedError
from sandboxkit.providers.local import LocalProvider, _bwrap, _cgroup, _launch, _state, _sweep
from sandboxkit.types import SandboxSpec
from tests.components import needs_control_group, needs_mounts
from tests.local.conftest import (
    PROGRAMS,
    Box,
    client,
    ended,
    groups_of,
    make,
    mounted,
    said,
    until_gone,
)

pytestmark = pytest.mark.anyio
needs_groups = needs_control_group()
needs_namespace = needs_mounts("a pid namespace")


def nobodys(sandbox_id: str) -> bool:
    """Say that no sandbox is the caller's own."""
    return False


async def killed_client(count: int = 1) -> list[str]:
    """The ids of sandboxes whose client is dead, and of whom nothing is left but its traces."""
    code = f"print(*[await provider.create(SandboxSpec()) for _ in range({count})], flush=True)"
    other = client(f"{code}\nawait anyio.sleep(600)")
    ids = (await said(other)).split()
    await ended(other, signal.SIGKILL)
    return ids


async def test_the_first_create_removes_what_dead_clients_left(
    provider: LocalProvider, state: Path
) -> None:
    folders = [state / sandbox_id for sandbox_id in await killed_client(3)]
    groups = [group for folder in folders for group in groups_of(folder)]
    await make(provider)
    await until_gone([*folders, *groups])


async def test_a_client_killed_while_it_removes_a_folder_leaves_nothing_after_a_sweep(
    provider: LocalProvider, state: Path
) -> None:
    other = client(PROGRAMS["killed_while_it_removes"])
    folder = state / await ended(other)
    assert (other.returncode, list(folder.iterdir())) == (-signal.SIGKILL, [])
    await make(provider)
    await until_gone([folder])


@needs_groups
async def test_groups_go_though_their_state_folder_has_gone_before(
    provider: LocalProvider, state: Path
) -> None:
    [sandbox_id] = await killed_client()
    groups = groups_of(state / sandbox_id)
    shutil.rmtree(state / sandbox_id)
    assert any(group.exists() for group in groups)
    await make(provider)
    await until_gone(groups)


async def test_a_start_in_progress_is_left_alone(provider: LocalProvider) -> None:
    states = _state.StateDir()
    begun = states.begin()
    groups = _cgroup.plan(begun.sandbox_id, _cgroup.CgroupLimits(64, 9, None), detached=False)
    try:
        begun.note_groups(groups)
        _cgroup.create(groups, _cgroup.CgroupLimits(64, 9, None))
        assert _sweep.sweep(states, nobodys) == []
        assert begun.folder.exists()
        assert all(Path(group).exists() for group in groups)
    finally:
        _cgroup.remove(groups)
        states.remove(begun.folder)
        begun.close()


async def test_a_sandbox_of_another_state_folder_is_left_alone(
    provider: LocalProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await make(provider)
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "elsewhere"))
    _sweep.sweep(_state.StateDir(), nobodys)
    assert (await box.run("true")).status == 0


ELSEWHERE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""A pid namespace of its own."""


@needs_namespace
async def test_another_pid_namespaces_sandbox_is_found_not_swept_and_gone_after_delete(
    provider: LocalProvider, state: Path
) -> None:
    other = client(PROGRAMS["owner_elsewhere"], prefix=ELSEWHERE)
    elsewhere = await said(other)
    for _ in range(2):
        assert [info.id async for info in provider.list({})] == [elsewhere]
        assert (await Box(provider, elsewhere).run("true")).status == 0
    groups = groups_of(state / elsewhere)
    await provider.delete(elsewhere)
    assert [info.id async for info in provider.list({})] == []
    await until_gone([state / elsewhere, *groups])
    await ended(other, line="end\n")


@needs_namespace
async def test_another_pid_namespaces_start_is_left_alone_until_it_is_dead(
    provider: LocalProvider, state: Path
) -> None:
    other = client(PROGRAMS["start_elsewhere"], prefix=ELSEWHERE)
    folder, states = Path(await said(other)), _state.StateDir()
    _sweep.sweep(states, nobodys)
    assert folder.exists()
    await ended(other, line="die\n")
    _sweep.sweep(states, nobodys)
    assert not folder.exists()


def dead_maker() -> _state.OwnerProcess:
    """One whose pid is in use again, by this process."""
    me = _state.OwnerProcess.me()
    return _state.OwnerProcess(me.pid, me.started - 1, me.namespace)


async def test_a_bubblewrap_that_hangs_is_ended(provider: LocalProvider, state: Path) -> None:
    # As where there are no control groups: only its command line says whose it is.
    name = "local-0123456789abcdef"
    (_state.StateDir().path / f".starting-{dead_maker()}-{name}").mkdir()
    read, write = os.pipe()
    bwrap = [str(_bwrap.find()), "--setenv", _launch.MARK, name]
    stuck = subprocess.Popen([*bwrap, "--args", str(read), "--", "/nothing"], pass_fds=[read])
    try:
        await make(provider)
        with anyio.fail_after(60):
            assert await anyio.to_thread.run_sync(stuck.wait) == -signal.SIGKILL
    finally:
        stuck.kill()
        os.close(read)
        os.close(write)


async def test_concurrent_sweeps_do_not_interfere(provider: LocalProvider, state: Path) -> None:
    await killed_client(8)
    states = _state.StateDir()
    for number in range(8):
        (states.path / f".starting-{dead_maker()}-local-{number:016x}").mkdir()
    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(lambda: anyio.to_thread.run_sync(_sweep.sweep, states, nobodys))
    assert os.listdir(state) == []


@needs_groups
async def test_a_group_that_cannot_be_removed_is_tried_again_and_holds_up_nobody(
    provider: LocalProvider, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cgroup, "_REMOVE_PATIENCE", 0.1)
    [sandbox_id] = await killed_client()
    group = groups_of(state / sandbox_id)[0]
    (group / "in-the-way").mkdir()
    try:
        with anyio.fail_after(60):
            assert [info async for info in provider.list({})] == []
        assert (state / sandbox_id).exists()
        await provider.delete((await make(provider)).id)
    finally:
        (group / "in-the-way").rmdir()
    assert [info async for info in provider.list({})] == []
    assert not (state / sandbox_id).exists()
    assert not group.exists()


async def test_a_partial_description_is_swept_and_a_failed_sweep_fails_no_create(
    provider: LocalProvider, state: Path
) -> None:
    folder = _state.StateDir().path / "local-0123456789abcdef"
    folder.mkdir()
    (folder / "meta.json").write_text('{"id": "local-01')
    assert [info async for info in provider.list({})] == []
    assert not folder.exists()
    (folder / "meta.json").mkdir(parents=True)
    try:
        await make(provider)
    finally:
        shutil.rmtree(folder)


async def test_members_of_another_pid_namespace_are_not_taken_for_ourselves(
    tmp_path: Path,
) -> None:
    # The kernel shows each as 0, which to kill(2) means the caller's own process group.
    (tmp_path / "cgroup.procs").write_text("0\n0\n")
    _cgroup.kill_members([str(tmp_path)], patience=0.1)


async def test_delete_ends_a_sandbox_whose_state_folder_was_removed(
    provider: LocalProvider, state: Path
) -> None:
    box = await make(provider, detach=True, lifetime=60)
    gone = [*groups_of(state / box.id)]
    shutil.rmtree(state)
    await provider.delete(box.id)
    assert not any(path.exists() for path in gone)
    with pytest.raises((SandboxNotFoundError, SandboxTerminatedError)):
        await box.run("true")


@needs_namespace
async def test_a_full_state_folder_is_a_capacity_error_and_leaves_nothing(state: Path) -> None:
    with mounted(state, "size=64k,mode=0700"):
        provider, ballast = LocalProvider(), state / "ballast"
        done = subprocess.run(["cp", "/dev/zero", ballast], capture_output=True)
        assert b"No space left" in done.stderr
        with pytest.raises(CapacityError, match="SANDBOXKIT_STATE_DIR"):
            await provider.create(SandboxSpec())
        assert os.listdir(state) == ["ballast"]
        ballast.unlink()
        await provider.delete(await provider.create(SandboxSpec()))
        await provider.aclose()
