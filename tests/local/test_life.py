"""From start to end: nothing of a sandbox is left, whatever happens to it or its client; what lives stays."""

import json
import os
import resource
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest

from sandboxkit import Session, errors
from sandboxkit.provider import owner_here, start_time
from sandboxkit.providers._agent import binary
from sandboxkit.providers.local import (
    LocalProvider,
    _bwrap,
    _cgroup,
    _launch,
    _namespaces,
    _state,
    _sweep,
)
from sandboxkit.testing.conformance.ports import _ECHO
from sandboxkit.types import SandboxSpec
from tests.components import needs_control_group, needs_mounts, needs_root
from tests.local import conftest
from tests.local.conftest import PROGRAMS, Box, Run, client, make, said
from tests.traces import assert_forgotten

pytestmark = pytest.mark.anyio


def processes_of(folder: Path) -> list[Path]:
    """The /proc folders of the processes that a sandbox's folder names."""
    meta = json.loads((folder / "meta.json").read_text())
    return [Path("/proc", pid) for pid in meta["processes"]]


async def test_delete_leaves_no_process_or_folder(provider: LocalProvider, state: Path) -> None:
    box = await make(provider)
    folder = state / box.id
    gone = [folder, *conftest.groups_of(folder), *processes_of(folder)]
    assert all(path.exists() for path in gone)
    await box.inner.delete()
    assert not any(path.exists() for path in gone)
    await box.inner.delete()
    with pytest.raises(errors.SandboxNotFoundError):
        await box.run("true")


async def test_unknown_and_malformed_ids_are_not_found(provider: LocalProvider) -> None:
    for sandbox_id in ("local-0123456789abcdef", "../x", "", "x/y", "."):
        box = provider.box(sandbox_id)
        await box.delete()
        with pytest.raises(errors.SandboxNotFoundError):
            await box.info()
        with pytest.raises(errors.SandboxNotFoundError):
            await box.read_file("/etc/passwd", max_bytes=10)


async def test_cancelled_starts_leave_nothing(
    provider: LocalProvider, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def recorded(size: int) -> str:
        names.append(secrets.token_hex(size))
        return names[-1]

    monkeypatch.setattr(_state, "secrets", SimpleNamespace(token_hex=recorded))
    for milliseconds in (0.0, 1, 2, 4, 6, 8, 12, 16, 24):
        with anyio.move_on_after(milliseconds / 1000):
            box = await provider.create(SandboxSpec(detach=milliseconds % 4 == 0))
            await box.delete()
        left = [info.id async for info in provider.list({})]
        for sandbox_id in left:  # cancelled in its delete
            await provider.box(sandbox_id).delete()
        assert os.listdir(state) == []
    assert names
    find = ["find", "/sys/fs/cgroup", "-path", "*/sandboxkit/*local-*", "-prune"]
    groups = subprocess.run(find, capture_output=True, text=True).stdout.splitlines()
    assert [group for group in groups if group.rpartition("-")[2] in names] == []


async def test_lifetime_ends_sandboxes_and_remains(provider: LocalProvider, state: Path) -> None:
    box, run = await make(provider, lifetime=60.0), Run()
    gone = [state / box.id, *conftest.groups_of(state / box.id)]
    async with anyio.create_task_group() as group:

        async def shorten() -> None:
            await run.heard.wait()
            await box.inner.renew(0.1)

        group.start_soon(shorten)
        with pytest.raises(errors.SandboxTerminatedError, match="lifetime"):
            await box.run("sh", "-c", "echo; sleep 600", run=run)
    await conftest.until_gone(gone)


@needs_root("it reads a process that is not its own")
async def test_secrets_are_not_in_the_state_folder(provider: LocalProvider, state: Path) -> None:
    box = await make(provider, secrets={"KEY": "hunter2"}, env={"PLAIN": "hunter3"})
    assert (await box.sh("echo $KEY $PLAIN")).stdout == "hunter2 hunter3\n"
    for path in state.rglob("*"):
        if path.is_file():
            assert b"hunter" not in path.read_bytes()
    for process in processes_of(state / box.id):
        assert b"hunter" not in (process / "cmdline").read_bytes()
        assert b"hunter" not in (process / "environ").read_bytes()
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / box.id).stat().st_mode) == 0o700


async def test_anothers_folder_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path))
    with pytest.raises(errors.ConfigurationError, match="0700"):
        await LocalProvider().create(SandboxSpec())


@pytest.mark.parametrize("said", ["Resource temporarily unavailable", "", "Permission denied"])
async def test_a_start_that_load_alone_can_fail_may_be_tried_again(
    provider: LocalProvider, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    helper = ["sh", "-c", f"echo {said} >&2"] if said else ["sleep", "60"]
    with monkeypatch.context() as early:
        early.setattr(_namespaces, "_HELPER_PATIENCE", 60.0 if said else 0.1)
        with pytest.raises(errors.SandboxStartError) as of_a_helper:
            _namespaces.namespace_of(helper, "net")
    monkeypatch.setattr(binary, "path", lambda: tmp_path / "agent")  # one that ends at once
    (tmp_path / "agent").write_text(f"#!/bin/sh\necho {said} >&2" if said else "#!/bin/true\n")
    (tmp_path / "agent").chmod(0o755)
    with pytest.raises(errors.SandboxStartError) as of_the_agent:
        await provider.create(SandboxSpec())
    for caught in (of_a_helper.value, of_the_agent.value):
        assert said in str(caught)
        assert caught.retryable is (said != "Permission denied")


async def test_detached_sandbox_outlives_its_client(provider: LocalProvider) -> None:
    other = client(PROGRAMS["detached_sandbox_outlives_its_client"])
    out = await conftest.ended(other)
    assert other.returncode == 0
    [info] = [info async for info in provider.list({"d": "1"})]
    assert info.id == out
    assert await provider.box(info.id).read_file("/workspace/file", max_bytes=99) == b"kept\n"
    await provider.box(info.id).delete()
    assert [info async for info in provider.list({})] == []


async def test_detached_sandbox_ends_at_its_lifetime(provider: LocalProvider, state: Path) -> None:
    other = client(
        "print((await provider.create(SandboxSpec(detach=True, lifetime=3.0))).id, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    out = await conftest.ended(other)
    processes = processes_of(state / out)
    await conftest.until_gone(processes)
    assert [info async for info in provider.list({})] == []
    assert os.listdir(state) == []


async def test_aclose_ends_attached_sandboxes(provider: LocalProvider, state: Path) -> None:
    temporary = LocalProvider()
    await temporary.create(SandboxSpec())
    kept = (await temporary.create(SandboxSpec(detach=True, lifetime=60))).id
    await temporary.aclose()
    assert os.listdir(state) == [kept]
    assert [info.id async for info in provider.list({})] == [kept]
    await provider.box(kept).delete()


def test_a_pid_that_was_used_again_is_not_alive() -> None:
    started = start_time(os.getpid())
    assert started is not None
    assert _state.pinned(os.getpid(), started + 1) is None


async def test_an_image_or_workdir_that_cannot_be_used_leaves_nothing_and_says_why(
    provider: LocalProvider, state: Path, tmp_path: Path
) -> None:
    text = tmp_path / "text"
    text.write_text("no image")
    (tmp_path / "empty").mkdir()
    for image in ("python:3.11-slim", str(text), str(tmp_path / "empty"), "/does/not/exist"):
        with pytest.raises(errors.ImageNotFoundError, match="docker save"):
            await provider.create(SandboxSpec(image=image))
    with pytest.raises(errors.SandboxStartError, match="/usr/nope"):
        await provider.create(SandboxSpec(workdir="/usr/nope"))
    assert os.listdir(state) == []


def test_a_reset_of_a_pooled_sandbox_closes_its_ports() -> None:
    with Session("local", pool=1, reuse="reset", profile="strict") as session:
        first = session.sandbox().start().result(60.0)
        server = first.exec(["python3", "-c", _ECHO])
        port = int(next(iter(server.stdout.lines())))
        exposed = first.expose(port).result(60.0)
        served = first.serve(0, "127.0.0.1:9").result(60.0)
        connection = first.connect(port).result(60.0)
        connection.send(b"x").result(60.0)
        assert connection.receive().result(60.0) == b"x"
        with socket.create_connection(("127.0.0.1", exposed.port), 60.0) as client:
            client.sendall(b"x")
            assert client.recv(1) == b"x"
            first.stop().result(60.0)
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", exposed.port), 60.0)
        with pytest.raises(ConnectionAbortedError):
            connection.receive().result(60.0)
        second = session.sandbox().start().result(60.0)
        assert second.id == first.id  # the reset found nothing left
        assert second.serve(served.port, "127.0.0.1:9").result(60.0).port == served.port


def test_a_connection_that_was_reset_says_so_each_time() -> None:
    with Session("local") as session, session.sandbox() as sandbox:
        served = sandbox.serve(0, "127.0.0.1:9").result(60.0)  # nothing listens there
        connection = sandbox.connect(served.port).result(60.0)
        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                connection.receive().result(60.0)


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.nightly)])
async def test_no_state_is_kept_of_ended_sandboxes(count: int) -> None:
    memory_mb = 64 if "memory" in _cgroup.available() else None
    await assert_forgotten(LocalProvider, count, memory_mb=memory_mb)


def test_a_process_with_many_open_files_makes_sandboxes() -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 2000, "this machine allows too few"
    argv = [sys.executable, "-c", PROGRAMS["many_files"]]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("made\n", 0), done.stderr


needs_groups = needs_control_group()
needs_namespace = needs_mounts("a pid namespace")


def nobodys(sandbox_id: str) -> bool:
    """Say that no sandbox is the caller's own."""
    return False


async def killed_client(count: int = 1) -> list[str]:
    """The ids of sandboxes whose client is dead, and of whom nothing is left but its traces."""
    code = (
        f"print(*[(await provider.create(SandboxSpec())).id for _ in range({count})], flush=True)"
    )
    other = client(f"{code}\nawait anyio.sleep(600)")
    ids = (await said(other)).split()
    await conftest.ended(other, signal.SIGKILL)
    return ids


async def test_a_create_removes_dead_clients_remains(provider: LocalProvider, state: Path) -> None:
    folders = [state / sandbox_id for sandbox_id in await killed_client(3)]
    groups = [group for folder in folders for group in conftest.groups_of(folder)]
    await make(provider)
    await conftest.until_gone([*folders, *groups])


async def test_a_sweep_removes_the_folder_of_a_killed_removal(
    provider: LocalProvider, state: Path
) -> None:
    other = client(PROGRAMS["killed_while_it_removes"])
    folder = state / await conftest.ended(other)
    assert (other.returncode, list(folder.iterdir())) == (-signal.SIGKILL, [])
    await make(provider)
    await conftest.until_gone([folder])


@needs_groups
async def test_groups_go_though_their_folder_is_gone(provider: LocalProvider, state: Path) -> None:
    [sandbox_id] = await killed_client()
    groups = conftest.groups_of(state / sandbox_id)
    shutil.rmtree(state / sandbox_id)
    await make(provider)
    await conftest.until_gone(groups)


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
async def test_another_pid_namespaces_sandbox_is_found_and_not_swept(
    provider: LocalProvider, state: Path
) -> None:
    other = client(PROGRAMS["owner_elsewhere"], prefix=ELSEWHERE)
    elsewhere = await said(other)
    for _ in range(2):
        assert [info.id async for info in provider.list({})] == [elsewhere]
        assert (await Box(provider.box(elsewhere)).run("true")).status == 0
    groups = conftest.groups_of(state / elsewhere)
    await provider.box(elsewhere).delete()
    assert [info.id async for info in provider.list({})] == []
    await conftest.until_gone([state / elsewhere, *groups])
    await conftest.ended(other, line="end\n")


@needs_namespace
async def test_another_pid_namespaces_start_is_left_alone_until_it_is_dead(state: Path) -> None:
    other = client(PROGRAMS["start_elsewhere"], prefix=ELSEWHERE)
    folder, states = Path(await said(other)), _state.StateDir()
    _sweep.sweep(states, nobodys)
    assert folder.exists()
    await conftest.ended(other, line="die\n")
    _sweep.sweep(states, nobodys)
    assert not folder.exists()


def dead_maker() -> str:
    """One whose pid is in use again, by this process."""
    pid, _, namespace = owner_here().split("-")
    return f"{pid}-1-{namespace}"


async def test_a_bubblewrap_that_hangs_is_ended(provider: LocalProvider) -> None:
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


async def test_concurrent_sweeps_do_not_interfere(state: Path) -> None:
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
    group = conftest.groups_of(state / sandbox_id)[0]
    (group / "in-the-way").mkdir()
    try:
        with anyio.fail_after(60):
            assert [info async for info in provider.list({})] == []
        assert (state / sandbox_id).exists()
        await (await make(provider)).inner.delete()
    finally:
        (group / "in-the-way").rmdir()
    assert [info async for info in provider.list({})] == []
    assert not (state / sandbox_id).exists()
    assert not group.exists()


async def test_a_partial_description_is_swept_and_fails_no_create(provider: LocalProvider) -> None:
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


async def test_members_of_another_pid_namespace_are_not_ourselves(tmp_path: Path) -> None:
    # The kernel shows each as 0, which to kill(2) means the caller's own process group.
    (tmp_path / "cgroup.procs").write_text("0\n0\n")
    _cgroup.kill_members([str(tmp_path)], patience=0.1)


async def test_delete_ends_a_sandbox_without_state_folder(
    provider: LocalProvider, state: Path
) -> None:
    box = await make(provider, detach=True, lifetime=60)
    gone = [*conftest.groups_of(state / box.id)]
    shutil.rmtree(state)
    await box.inner.delete()
    assert not any(path.exists() for path in gone)
    with pytest.raises((errors.SandboxNotFoundError, errors.SandboxTerminatedError)):
        await box.run("true")


@needs_namespace
async def test_a_full_state_folder_is_a_capacity_error_and_leaves_nothing(state: Path) -> None:
    with conftest.mounted(state, "size=64k,mode=0700"):
        provider, ballast = LocalProvider(), state / "ballast"
        done = subprocess.run(["cp", "/dev/zero", ballast], capture_output=True)
        assert b"No space left" in done.stderr
        with pytest.raises(errors.CapacityError, match="SANDBOXKIT_STATE_DIR"):
            await provider.create(SandboxSpec())
        assert os.listdir(state) == ["ballast"]
        ballast.unlink()
        await (await provider.create(SandboxSpec())).delete()
        await provider.aclose()
