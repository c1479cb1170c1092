"""What happens to sandboxes at interpreter exit, on signals, after a fork, and in a sweep."""

import asyncio
import dataclasses
import datetime
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from sandboxkit import (
    ConfigurationError,
    Operation,
    SandboxError,
    SandboxInfo,
    SandboxState,
    Session,
    _cleanup,
    _owners,
    _tags,
)
from sandboxkit.testing import FakeProvider
from sandboxkit.types import SandboxSpec
from tests.components import lack, reason

# Each deletion leaves a file behind, so that another process can count them.
PRELUDE = """
import os, signal, sys, threading, asyncio
from pathlib import Path
from sandboxkit import Session
from sandboxkit.testing import FakeProvider

folder = Path(sys.argv[1])

class Counting(FakeProvider):
    async def delete(self, sandbox_id):
        await super().delete(sandbox_id)
        (folder / sandbox_id).touch()

class Stuck(FakeProvider):
    async def delete(self, sandbox_id):
        print("stopping", flush=True)
        await asyncio.Event().wait()
"""


def run_script(folder: Path, body: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + body, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},  # what one test abandons is pytest's to remove
    )


def test_a_session_left_open_is_closed_at_exit(tmp_path: Path) -> None:
    process = run_script(tmp_path, "s = Session(Counting()); s.sandbox().start().result(60)")
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert len(list(tmp_path.glob("fake-*"))) == 1


def test_an_error_in_the_program_still_cleans_up(tmp_path: Path) -> None:
    process = run_script(tmp_path, "s = Session(Counting()); s.sandbox().start().result(60); 1 / 0")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "ZeroDivisionError" in errors
    assert len(list(tmp_path.glob("fake-*"))) == 1


@pytest.mark.parametrize(
    ("busy", "patience", "expected"), [(0.3, 60.0, "ended\n"), (1000, 1.0, "")]
)
def test_threads_of_extension_modules_may_end_first(
    tmp_path: Path, busy: float, patience: float, expected: str
) -> None:
    """They crash an interpreter that ends meanwhile; one that stays does not hold it up."""
    process = run_script(
        tmp_path,
        f"""
import _thread, time      # a thread that Python does not know of, as those of extensions
from sandboxkit import _exit
_exit._SETTLE_SECONDS = {patience}

def answer():
    time.sleep({busy})
    os.write(1, b"ended\\n")

with Session(Counting()) as s:
    s.sandbox().start().result(60)
    _thread.start_new_thread(answer, ())
""",
    )
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (0, expected, "")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_cleans_up_and_ends_the_program(tmp_path: Path, signum: signal.Signals) -> None:
    process = run_script(
        tmp_path,
        """
with Session(Counting()) as s:
    s.sandbox().start().result(60)
    print("ready", flush=True)
    threading.Event().wait()
""",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signum)
    process.communicate(timeout=60)
    assert process.returncode in (-signum, 128 + signum)
    assert len(list(tmp_path.glob("fake-*"))) == 1


def test_a_second_ctrl_c_exits_at_once(tmp_path: Path) -> None:
    process = run_script(
        tmp_path,
        """
with Session(Stuck()) as s:
    s.sandbox().start().result(60)
    print("ready", flush=True)
    threading.Event().wait()
""",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT


def test_a_forked_child_neither_hangs_nor_stops_the_parents_sandboxes(tmp_path: Path) -> None:
    process = run_script(
        tmp_path,
        """
s = Session(Counting())
s.sandbox().start().result(60)
pid = os.fork()
if pid == 0:
    s.close().result(60)
    sys.exit(0)          # runs the child's exit handlers
assert os.waitpid(pid, 0)[1] == 0
print(len(list(folder.glob("fake-*"))), flush=True)
""",
    )
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (0, "0\n", "")
    assert len(list(tmp_path.glob("fake-*"))) == 1


def test_a_session_refuses_work_in_a_forked_child() -> None:
    session = Session(FakeProvider())
    session._pid += 1  # what a child sees
    with pytest.raises(ConfigurationError, match="after a fork"):
        session.sandbox()
    session._pid = os.getpid()
    session.close().result(60)


def info(**tags: str) -> SandboxInfo:
    return SandboxInfo("id", "fake", SandboxState.RUNNING, tags)


def dead_owner() -> str:
    """The owner that a process of this machine was."""
    code = "from sandboxkit import _owners; print(_owners.owner())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_sandbox_of_a_dead_process_of_this_machine_is_an_orphan() -> None:
    dead = {_tags.OWNER: dead_owner()}
    assert not _owners.is_orphan(info(**{_tags.OWNER: _owners.owner()}))
    assert _owners.is_orphan(info(**dead))
    assert not _owners.is_orphan(info(**dead, **{_tags.DETACH: "1"}))


def test_a_sandbox_whose_owner_may_live_is_not_an_orphan() -> None:
    boot, namespace, pid, started = dead_owner().split(".")
    for other in (
        f"0123456789abcdef.{namespace}.{pid}.{started}",  # another machine, or before a reboot
        f"{boot}.4026539999.{pid}.{started}",  # in a container of this machine
        "",
        "a:b:c",
        f"{boot}.{namespace}..{started}",
    ):
        assert not _owners.is_orphan(info(**{_tags.OWNER: other})), other
    assert not _owners.is_orphan(info())


def test_a_reused_pid_is_another_process() -> None:
    boot, namespace, _, started = _owners.owner().split(".")
    reused = f"{boot}.{namespace}.{os.getpid()}.{int(started) - 1}"
    assert _owners.is_orphan(info(**{_tags.OWNER: reused}))


def test_a_process_in_another_pid_namespace_is_not_taken_for_dead() -> None:
    """Its pid is another process's here, or nobody's."""
    code = "from sandboxkit import _owners; print(_owners.owner()); input()"
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    with subprocess.Popen(
        [*unshare, sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as inside:
        assert inside.stdout is not None
        owner = inside.stdout.readline().strip()
        if not owner:
            lack(reason("user and pid namespaces", "allow them to ordinary users"))
        assert not _owners.is_orphan(info(**{_tags.OWNER: owner}))


def test_a_sweep_deletes_only_matching_sandboxes() -> None:
    provider = FakeProvider()

    async def sweep(**selectors: object) -> int:
        return len(await _cleanup.sweep(provider, **selectors))  # type: ignore[arg-type] # forwarded

    with Session(provider, tags="run:42") as session:
        first = session.sandbox(tags="kind:a").start().result(60)
        session.sandbox(tags="kind:b").start().result(60)
        assert asyncio.run(sweep(tags={"run": "42"}, dry_run=True)) == 2
        assert asyncio.run(sweep(tags={"run": "42"}, older_than=3600.0)) == 0
        assert asyncio.run(sweep(tags={"run": "42"}, orphans=True, expired=True)) == 0
        assert asyncio.run(sweep(tags={"run": "42", "kind": "b"})) == 1
        assert [found.id for found in session.list("run:42").result(60)] == [first.id]


def test_expiry_is_read_from_the_backend_or_the_tags() -> None:
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=1)
    assert _owners.is_expired(SandboxInfo("i", "f", SandboxState.RUNNING, {}, expires_at=past))
    assert _owners.is_expired(info(**{_tags.EXPIRES: "1"}))
    assert not _owners.is_expired(info())


class Clocks:
    """Both clocks of this machine, to be set apart."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.wall, self.boot = 1e9, 1000.0
        patch.setattr(_owners, "_clocks", lambda: (self.boot, self.wall))

    def passes(self, seconds: float) -> None:
        """Both go on."""
        self.wall, self.boot = self.wall + seconds, self.boot + seconds

    def jumps(self, seconds: float) -> None:
        """The wall clock is set."""
        self.wall += seconds

    def made(self, lifetime: float) -> SandboxInfo:
        """A sandbox of this moment."""
        tags = {_tags.BIRTH: _owners.birth(), _tags.EXPIRES: f"{self.wall + lifetime:.0f}"}
        created = datetime.datetime.fromtimestamp(self.wall, datetime.UTC)
        return SandboxInfo("i", "f", SandboxState.RUNNING, tags, created_at=created)

    def renewed(self, sandbox: SandboxInfo, lifetime: float) -> SandboxInfo:
        """The same one, as a backend tells it after `renew`."""
        expires = datetime.datetime.fromtimestamp(self.wall + lifetime, datetime.UTC)
        return dataclasses.replace(sandbox, expires_at=expires)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def test_a_lifetime_passes(clocks: Clocks) -> None:
    sandbox = clocks.made(100)
    clocks.passes(99)
    assert not _owners.is_expired(sandbox)
    clocks.passes(2)
    assert _owners.is_expired(sandbox)


def test_a_clock_that_jumps_forward_ends_no_lifetime(clocks: Clocks) -> None:
    sandbox = clocks.made(100)
    clocks.jumps(1e8)
    assert not _owners.is_expired(sandbox)
    assert _owners.age(sandbox) < 1
    renewed = clocks.renewed(sandbox, 500)
    clocks.passes(200)
    assert _owners.is_expired(sandbox)
    assert not _owners.is_expired(renewed)
    clocks.jumps(1e8)
    assert not _owners.is_expired(renewed)


def test_a_clock_that_jumps_forward_after_a_renewal_ends_no_lifetime(clocks: Clocks) -> None:
    sandbox = clocks.made(100)
    clocks.passes(50)
    renewed = clocks.renewed(sandbox, 500)
    clocks.jumps(1e8)
    clocks.passes(499)
    assert not _owners.is_expired(renewed)
    clocks.passes(2)
    assert _owners.is_expired(renewed)


def test_a_clock_that_jumps_back_ends_no_lifetime(clocks: Clocks) -> None:
    sandbox = clocks.made(100)
    clocks.jumps(-1e8)
    clocks.passes(99)
    assert not _owners.is_expired(sandbox)


def test_a_sandbox_from_before_the_boot_expires_by_the_wall_clock(clocks: Clocks) -> None:
    sandbox = clocks.made(100)
    elsewhere = {**sandbox.tags, _tags.BIRTH: "0123456789abcdef.5.1000000000"}
    clocks.jumps(200)
    assert _owners.is_expired(dataclasses.replace(sandbox, tags=elsewhere))
    for odd in ("", "x", _owners.birth().rpartition(".")[0], _owners.birth() + "e"):
        tags = {**sandbox.tags, _tags.BIRTH: odd}
        assert _owners.is_expired(dataclasses.replace(sandbox, tags=tags)), odd


class Here(FakeProvider):
    """Has sandboxes on this machine, and says when it lists them."""

    on_this_machine: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.lists = 0
        self.gate = asyncio.Event()
        self.broken = False
        self.swept = threading.Event()
        self.deleted = threading.Event()

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        self.lists += 1
        await self.gate.wait()
        if self.broken:
            self.swept.set()
            raise SandboxError("down")
        async for found in super().list(tags):
            yield found

    async def delete(self, sandbox_id: str) -> None:
        await super().delete(sandbox_id)
        self.deleted.set()

    def stray(self, owner: str, expires: float) -> str:
        """A sandbox of that owner."""
        tags = {_tags.OWNER: owner, _tags.EXPIRES: f"{expires:.0f}"}
        return Operation(self.create(SandboxSpec(tags=tags, lifetime=None))).result(60)

    def open(self) -> None:
        """Let every list go on."""

        async def run() -> None:
            self.gate.set()

        Operation(run()).result(60)


def test_the_first_start_sweeps_left_overs_without_waiting() -> None:
    provider = Here()
    dead, alive = dead_owner(), _owners.owner()
    stray = provider.stray(dead, 1)
    kept = {
        provider.stray(dead, 1e11),
        provider.stray(alive, 1),
        provider.stray("0123456789abcdef.1.2.3", 1),
    }
    with Session(provider) as session:
        session.sandbox().start().result(60)  # the sweep is still held
        session.sandbox().start().result(60)
        assert stray in provider._boxes
        provider.open()
        assert provider.deleted.wait(60)
    assert provider._boxes.keys() == kept
    assert provider.lists == 1
    for sandbox_id in kept:
        Operation(provider.delete(sandbox_id)).result(60)


def test_a_failed_or_hung_sweep_affects_no_start() -> None:
    provider = Here()
    with Session(provider) as session:
        session.sandbox().start().result(60)
    assert not provider._boxes  # it hung until the session was closed
    provider.broken = True
    provider.open()
    with Session(provider) as session:
        session.sandbox().start().result(60)
        assert provider.swept.wait(60)
