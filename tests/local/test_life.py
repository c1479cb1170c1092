"""From start to end: nothing of a sandbox is left, whatever happens to it or to its client."""

import json
import os
import resource
import secrets
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from sandboxkit import Operation, Session
from sandboxkit.errors import (
    ConfigurationError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.providers.local import LocalProvider, _cgroup, _state
from sandboxkit.testing.conformance.ports import _ECHO
from sandboxkit.types import SandboxSpec
from tests.components import needs_root
from tests.local.conftest import PROGRAMS, Run, client, ended, groups_of, make, until_gone
from tests.traces import assert_forgotten

pytestmark = pytest.mark.anyio


def processes_of(folder: Path) -> list[Path]:
    """The /proc folders of the processes that a sandbox's folder names."""
    meta = json.loads((folder / "meta.json").read_text())
    return [Path("/proc", pid) for pid in meta["processes"]]


async def test_delete_leaves_no_process_group_or_folder(
    provider: LocalProvider, state: Path
) -> None:
    box = await make(provider)
    folder = state / box.id
    gone = [folder, *groups_of(folder), *processes_of(folder)]
    assert all(path.exists() for path in gone)
    await provider.delete(box.id)
    assert not any(path.exists() for path in gone)
    await provider.delete(box.id)
    with pytest.raises(SandboxNotFoundError):
        await box.run("true")


async def test_unknown_and_malformed_ids_are_not_found(provider: LocalProvider) -> None:
    for sandbox_id in ("local-0123456789abcdef", "../x", "", "x/y", "."):
        await provider.delete(sandbox_id)
        with pytest.raises(SandboxNotFoundError):
            await provider.get(sandbox_id)
        with pytest.raises(SandboxNotFoundError):
            await provider.read_file(sandbox_id, "/etc/passwd", max_bytes=10)


async def test_cancelled_create_leaves_nothing(
    provider: LocalProvider, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def recorded(size: int) -> str:
        names.append(secrets.token_hex(size))
        return names[-1]

    monkeypatch.setattr(_state, "secrets", SimpleNamespace(token_hex=recorded))
    for milliseconds in (0.0, 1, 2, 4, 6, 8, 12, 16, 24):
        with anyio.move_on_after(milliseconds / 1000):
            sandbox_id = await provider.create(SandboxSpec(detach=milliseconds % 4 == 0))
            await provider.delete(sandbox_id)
        left = [info.id async for info in provider.list({})]
        for sandbox_id in left:  # cancelled in its delete
            await provider.delete(sandbox_id)
        assert os.listdir(state) == []
    assert names
    find = ["find", "/sys/fs/cgroup", "-path", "*/sandboxkit/*local-*", "-prune"]
    groups = subprocess.run(find, capture_output=True, text=True).stdout.splitlines()
    assert [group for group in groups if group.rpartition("-")[2] in names] == []


async def test_lifetime_ends_the_sandbox_and_its_remains_go(
    provider: LocalProvider, state: Path
) -> None:
    box, run = await make(provider, lifetime=60.0), Run()
    gone = [state / box.id, *groups_of(state / box.id)]
    async with anyio.create_task_group() as group:

        async def shorten() -> None:
            await run.heard.wait()
            await provider.renew(box.id, 0.1)

        group.start_soon(shorten)
        with pytest.raises(SandboxTerminatedError, match="lifetime"):
            await box.run("sh", "-c", "echo; sleep 600", run=run)
    await until_gone(gone)


@needs_root("it reads a process that is not its own")
async def test_secrets_and_environment_are_not_in_the_state_folder(
    provider: LocalProvider, state: Path
) -> None:
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


async def test_state_folder_of_others_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path))
    with pytest.raises(ConfigurationError, match="0700"):
        await LocalProvider().create(SandboxSpec())


async def test_detached_sandbox_outlives_its_client(provider: LocalProvider) -> None:
    other = client(PROGRAMS["detached_sandbox_outlives_its_client"])
    out = await ended(other)
    assert other.returncode == 0
    [info] = [info async for info in provider.list({"d": "1"})]
    assert info.id == out
    assert await provider.read_file(info.id, "/workspace/file", max_bytes=99) == b"kept\n"
    await provider.delete(info.id)
    assert [info async for info in provider.list({})] == []


async def test_detached_sandbox_ends_at_its_lifetime(provider: LocalProvider, state: Path) -> None:
    other = client(
        "print(await provider.create(SandboxSpec(detach=True, lifetime=3.0)), flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    out = await ended(other)
    processes = processes_of(state / out)
    await until_gone(processes)
    assert [info async for info in provider.list({})] == []
    assert os.listdir(state) == []


async def test_aclose_ends_sandboxes_that_are_not_detached(
    provider: LocalProvider, state: Path
) -> None:
    temporary = LocalProvider()
    await temporary.create(SandboxSpec())
    kept = await temporary.create(SandboxSpec(detach=True, lifetime=60))
    await temporary.aclose()
    assert os.listdir(state) == [kept]
    assert [info.id async for info in provider.list({})] == [kept]
    await provider.delete(kept)


async def test_an_image_or_workdir_that_cannot_be_used_leaves_nothing_and_says_why(
    provider: LocalProvider, state: Path, tmp_path: Path
) -> None:
    text = tmp_path / "text"
    text.write_text("no image")
    (tmp_path / "empty").mkdir()
    for image in ("python:3.11-slim", str(text), str(tmp_path / "empty"), "/does/not/exist"):
        with pytest.raises(ImageNotFoundError, match="docker save"):
            await provider.create(SandboxSpec(image=image))
    with pytest.raises(SandboxStartError, match="/usr/nope"):
        await provider.create(SandboxSpec(workdir="/usr/nope"))
    assert os.listdir(state) == []


def test_calls_to_a_stopped_agent_are_unavailable_and_its_sandbox_is_stopped(state: Path) -> None:
    with Session(provider="local") as session:
        sandbox = session.sandbox().start().result(60)
        assert sandbox.id is not None
        *_, agent = json.loads((state / sandbox.id / "meta.json").read_text())["processes"]
        os.kill(int(agent), signal.SIGSTOP)
        calls: list[Operation[Any]] = [
            sandbox.read_file("/etc/passwd"),
            sandbox.write_file("/tmp/x", b"x" * 3_000_000),
            sandbox.list_dir("/"),
        ]
        end = time.monotonic() + 60.0
        for call in calls:
            with pytest.raises(ProviderUnavailableError):
                call.result(end - time.monotonic())
        os.kill(int(agent), signal.SIGCONT)
        assert sandbox.read_file("/etc/passwd").result(30)
        os.kill(int(agent), signal.SIGSTOP)
        sandbox.stop().result(60.0)
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
