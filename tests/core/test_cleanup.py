"""What happens to sandboxes at interpreter exit, on signals, after a fork, and in a sweep."""

import asyncio
import dataclasses
import datetime
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from sandboxkit import Operation, Session, _tags
from sandboxkit._life import _cleanup, _owners
from sandboxkit.errors import SandboxError
from sandboxkit.testing.fake import FakeBox, FakeProvider
from sandboxkit.types import SandboxInfo, SandboxSpec, SandboxState, SnapshotInfo
from tests.components import lack, reason
from tests.pool.providers import Here, line_of, on_the_loop

PROGRAMS = tomllib.loads(Path(__file__).with_name("cleanup.toml").read_text())


def start(folder: Path, name: str, **values: float) -> "subprocess.Popen[str]":
    code: str = PROGRAMS["prelude"] + PROGRAMS[name]
    for word, value in values.items():
        code = code.replace(word, str(value))
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},  # what one test abandons is pytest's to remove
    )


@pytest.mark.parametrize(
    ("name", "returncode", "error"), [("left_open", 0, ""), ("fails", 1, "ZeroDivisionError")]
)
def test_an_open_session_is_closed_at_exit(
    tmp_path: Path, name: str, returncode: int, error: str
) -> None:
    process = start(tmp_path, name)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == returncode
    assert error in errors if error else errors == ""
    assert len(list(tmp_path.glob("fake-*"))) == 1


@pytest.mark.parametrize(
    ("busy", "patience", "expected"), [(0.3, 60.0, "ended\n"), (1000, 1.0, "")]
)
def test_threads_of_extension_modules_may_end_first(
    tmp_path: Path, busy: float, patience: float, expected: str
) -> None:
    """They crash an interpreter that ends meanwhile; one that stays does not hold it up."""
    process = start(tmp_path, "busy_thread", BUSY=busy, PATIENCE=patience)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (0, expected, "")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_cleans_up_and_ends_the_program(tmp_path: Path, signum: signal.Signals) -> None:
    process = start(tmp_path, "waits")
    assert line_of(process) == "ready"
    process.send_signal(signum)
    process.communicate(timeout=60)
    assert process.returncode in (-signum, 128 + signum)
    assert len(list(tmp_path.glob("fake-*"))) == 1


def test_a_second_ctrl_c_exits_at_once(tmp_path: Path) -> None:
    process = start(tmp_path, "waits_stuck")
    for line in ("ready", "stopping"):
        assert line_of(process) == line
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT


def info(**tags: str) -> SandboxInfo:
    return SandboxInfo("id", "fake", SandboxState.RUNNING, tags)


OWNER = "from sandboxkit._life import _owners; print(_owners.owner())"


def dead_owner() -> str:
    """The owner that a process of this machine was."""
    return subprocess.check_output([sys.executable, "-c", OWNER], text=True).strip()


def orphan(owner: str, **tags: str) -> bool:
    return _owners.is_orphan(info(**{_tags.OWNER: owner}, **tags))


def test_a_sandbox_is_an_orphan_only_if_its_process_of_this_machine_is_dead() -> None:
    dead, own = dead_owner(), _owners.owner()
    boot, namespace, pid, started = dead.split(".")
    assert orphan(dead)
    own_start = int(own.split(".")[3])
    assert orphan(f"{own.rpartition('.')[0]}.{own_start - 1}"), "its pid was used again"
    assert not orphan(own)
    assert not orphan(dead, **{_tags.DETACH: "1"})
    assert not _owners.is_orphan(info())
    for other in (
        f"0123456789abcdef.{namespace}.{pid}.{started}",  # another machine, or before a reboot
        f"{boot}.4026539999.{pid}.{started}",  # in a container of this machine
        "",
        "a:b:c",
        f"{boot}.{namespace}..{started}",
    ):
        assert not orphan(other), other


def test_a_process_in_another_pid_namespace_is_not_taken_for_dead() -> None:
    """Its pid is another process's here, or nobody's."""
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    with subprocess.Popen(
        [*unshare, sys.executable, "-c", f"{OWNER}; input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as inside:
        owner = line_of(inside)
        if not owner:
            lack(reason("user and pid namespaces", "allow them to ordinary users"))
        assert not orphan(owner)


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

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.boot = 1e9, 1000.0
        monkeypatch.setattr(_owners, "_clocks", lambda: (self.boot, self.wall))

    def passes(self, seconds: float, *, jump: float = 0.0) -> None:
        """Both go on, after the wall clock has been set."""
        self.wall, self.boot = self.wall + seconds + jump, self.boot + seconds

    def made(self, lifetime: float) -> SandboxInfo:
        """A sandbox of this moment."""
        tags = {_tags.BIRTH: _owners.birth(), _tags.EXPIRES: f"{self.wall + lifetime:.0f}"}
        created = datetime.datetime.fromtimestamp(self.wall, datetime.UTC)
        return SandboxInfo("i", "f", SandboxState.RUNNING, tags, created_at=created)

    def renewed(self, sandbox: SandboxInfo, lifetime: float) -> SandboxInfo:
        """The same one, as a backend tells it after `renew`."""
        expires = datetime.datetime.fromtimestamp(self.wall + lifetime, datetime.UTC)
        return dataclasses.replace(sandbox, expires_at=expires)


def snapshot_like(sandbox: SandboxInfo) -> SnapshotInfo:
    """A snapshot that was taken when the sandbox started, for as long."""
    assert sandbox.created_at is not None
    expires = datetime.datetime.fromtimestamp(float(sandbox.tags[_tags.EXPIRES]), datetime.UTC)
    return SnapshotInfo("s", "f", "files", 0, sandbox.created_at, expires, tags=sandbox.tags)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


@pytest.mark.parametrize("jump", [0, 1e8, -1e8])
def test_a_lifetime_passes_whatever_the_wall_clock_is_set_to(clocks: Clocks, jump: float) -> None:
    sandbox = clocks.made(100)
    clocks.passes(99, jump=jump)
    for each in (sandbox, snapshot_like(sandbox)):
        assert not _owners.is_expired(each)
        assert _owners.age(each) == pytest.approx(min(99, 99 + jump))
    clocks.passes(2)
    for each in (sandbox, snapshot_like(sandbox)):
        assert _owners.is_expired(each) or jump < 0


@pytest.mark.parametrize("before", [True, False])
def test_a_clock_set_around_a_renewal_ends_no_lifetime(clocks: Clocks, before: bool) -> None:
    sandbox = clocks.made(100)
    clocks.passes(50, jump=1e8 if before else 0)
    renewed = clocks.renewed(sandbox, 500)
    clocks.passes(499, jump=1e8)
    assert not _owners.is_expired(renewed)
    assert _owners.is_expired(sandbox)
    clocks.passes(2)
    assert before or _owners.is_expired(renewed)


def test_a_sandbox_from_before_the_boot_expires_by_the_wall_clock(clocks: Clocks) -> None:
    sandbox = clocks.made(100)
    elsewhere = {**sandbox.tags, _tags.BIRTH: "0123456789abcdef.5.1000000000"}
    clocks.passes(0, jump=200)
    assert _owners.is_expired(dataclasses.replace(sandbox, tags=elsewhere))
    for odd in ("", "x", _owners.birth().rpartition(".")[0], _owners.birth() + "e"):
        tags = {**sandbox.tags, _tags.BIRTH: odd}
        assert _owners.is_expired(dataclasses.replace(sandbox, tags=tags)), odd


class Swept(Here):
    """Lists its sandboxes only once the gate is open, and fails then if it is told to."""

    def __init__(self) -> None:
        super().__init__(kind=_SweptBox)
        self.lists = 0
        self.gate = asyncio.Event()
        self.broken = False
        self.done = threading.Event()

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        self.lists += 1
        await self.gate.wait()
        if self.broken:
            self.done.set()
            raise SandboxError("down")
        async for found in super().list(tags):
            yield found

    def stray(self, owner: str, expires: float) -> str:
        """A sandbox of that owner."""
        tags = {_tags.OWNER: owner, _tags.EXPIRES: f"{expires:.0f}"}
        return Operation(self.create(SandboxSpec(tags=tags, lifetime=None))).result(60).id


class _SweptBox(FakeBox):
    async def delete(self) -> None:
        assert isinstance(self.provider, Swept)
        await super().delete()
        self.provider.done.set()


def test_the_first_start_sweeps_left_overs_without_waiting() -> None:
    provider = Swept()
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
        assert stray in provider.boxes
        on_the_loop(provider.gate.set)
        assert provider.done.wait(60)
    assert provider.boxes.keys() == kept
    assert provider.lists == 1
    for sandbox_id in kept:
        Operation(provider.box(sandbox_id).delete()).result(60)


def test_a_failed_or_hung_sweep_affects_no_start() -> None:
    provider = Swept()
    with Session(provider) as session:
        session.sandbox().start().result(60)
    assert not provider.boxes  # it hung until the session was closed
    provider.broken = True
    provider.done.clear()
    on_the_loop(provider.gate.set)
    with Session(provider) as session:
        session.sandbox().start().result(60)
        assert provider.done.wait(60)
