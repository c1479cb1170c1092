"""Snapshots of pods: changes of the image, what is refused, and processes that are killed meanwhile."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sandboxkit import Session, Snapshot, errors
from sandboxkit.providers.kubernetes import KubernetesProvider, _snapshots
from sandboxkit.providers.kubernetes._snapshot_store import ArchiveStore, KeptFiles
from tests.kubernetes.cluster import Cluster, wait_until
from tests.kubernetes.here import IMAGE, PROGRAMS, sandboxes

pytestmark = [pytest.mark.timeout(240)]

_PROGRAMS = PROGRAMS["snapshots"]
# Its id, the digest of its content, two sizes and two times come first.
KEPT = KeptFiles(
    "", "0" * 64, 1, 1, 0.0, 0.0, parent=None, name="mine", tags={}, image=IMAGE, places=["/"]
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found_cluster: Cluster) -> Path:
    """A state folder of the test's own."""
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state" / "kubernetes-snapshots"


def test_all_files_of_image_and_users_are_as_they_were(namespace: str, state: Path) -> None:
    look = ["python3", "-B", "-I", "-c", _PROGRAMS["look"]]
    with Session("kubernetes") as session:
        with session.sandbox() as base:
            for user, code in (("root", _PROGRAMS["as_root"]), ("nobody", _PROGRAMS["as_nobody"])):
                change = base.exec(["python3", "-B", "-I", "-c", code], user=user, check=True)
                change.result(60)
            before = base.exec(look, check=True, output_limit=None).result(60)
            snapshot = base.snapshot().result(60)
            again = base.exec(look, check=True, output_limit=None).result(60)
        with session.sandbox(snapshot=snapshot) as other:
            after = other.exec(look, check=True, output_limit=None).result(60)
            ours = other.exec(["cat", "/opt/shared/second"], user="nobody").result(60)
            extra = "import os; print(os.getxattr('/opt/shared/own', 'user.mark'))"
            mark = other.exec(["python3", "-c", extra], user="nobody").result(60)
            assert (ours.stdout, mark.stdout) == ("own", "b'x'\n")
            chained = other.snapshot().result(60)
        assert set(again.stdout.split("\n")) == set(before.stdout.split("\n"))
        assert set(after.stdout.split("\n")) ^ set(before.stdout.split("\n")) == set()
        assert "/opt/locked" in before.stdout
        assert "a-folder-in-a-folder/inside" in before.stdout
        with session.sandbox(snapshot=chained) as third:
            last = third.exec(look, check=True, output_limit=None).result(60)
        assert set(last.stdout.split("\n")) ^ set(before.stdout.split("\n")) == set()
        assert chained.parent == snapshot.id
        for each in (chained, snapshot):
            each.delete().result(60)
    assert os.listdir(state) == []


def test_unusable_snapshots_are_refused(
    namespace: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session("kubernetes") as session, session.sandbox() as base:
        fill = "head -c 300000 /dev/urandom > f; head -c 8000000 /dev/zero > g"
        base.exec(["sh", "-c", fill], check=True).result(60)
        snapshot = base.snapshot().result(60)
        assert snapshot.bytes is not None
        assert 300_000 < snapshot.bytes < 400_000  # compressed
        with pytest.raises(errors.ConfigurationError, match=r"disk_mb=7: .* has 8\d{6} bytes"):
            session.sandbox(snapshot=snapshot, disk_mb=7).start().result(60)
        with pytest.raises(errors.ConfigurationError, match="command="):
            session.sandbox(snapshot=snapshot, command=["sleep", "1"])
        for option, value in (("profile", "strict"), ("image", "other")):
            given: Any = {option: value}  # options of two types
            with pytest.raises(errors.ConfigurationError, match=f"{option}=.*{snapshot.id}"):
                session.sandbox(snapshot=snapshot, **given).start().result(60)
        record = next(state.glob("*.json"))
        known = record.read_text()
        record.write_text(known.replace(IMAGE, "sandboxkit/pause:1"))
        with pytest.raises(errors.SandboxStartError, match="it is not the image of the snapshot"):
            session.sandbox(snapshot=snapshot).start().result(60)
        record.write_text(known)
        damaged = next(state.glob("*.tar.gz"))
        damaged.write_bytes(damaged.read_bytes()[:4096].ljust(damaged.stat().st_size, b"\0"))
        with pytest.raises(errors.SandboxStartError, match="is damaged"):
            session.sandbox(snapshot=snapshot).start().result(60)
        monkeypatch.setattr(_snapshots, "_MOST", 200_000)
        with pytest.raises(errors.CapacityError, match="more than 200000 bytes"):
            base.snapshot().result(60)
        monkeypatch.setattr(_snapshots, "_MOST", 1 << 30)
        base.exec(["sh", "-c", "head -c 8000000 /dev/urandom > f"], check=True).result(60)
        full = ("mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "full", state.parent)
        subprocess.run(full, check=True)
        try:
            with pytest.raises(errors.CapacityError, match=r"\d+ of 4194304 bytes free"):
                base.snapshot().result(60)
            assert os.listdir(state) == []
        finally:
            subprocess.run(["umount", state.parent], check=True)
        assert base.exec(["echo", "goes on"]).result(60).stdout == "goes on\n"
        assert Snapshot.list(provider="kubernetes").result(60)[0].id == snapshot.id
        snapshot.delete().result(60)
    assert os.listdir(state) == []
    with pytest.raises(errors.ConfigurationError, match="claims='pool'"):
        Session(KubernetesProvider(claims="pool")).sandbox().snapshot()


def test_two_snapshots_of_a_sandbox_are_kept_apart(state: Path) -> None:
    store = ArchiveStore()
    with store.partial("one"), store.partial("other"):
        again = store.partial("one")
        with pytest.raises(
            errors.ProviderUnavailableError, match="another snapshot of sandbox 'one'"
        ):
            again.__enter__()
        assert len(os.listdir(state)) == 2
        (state / f"{'0' * 64}.tar").touch()  # of a version that did not compress
    assert Snapshot.list(provider="kubernetes").result(60) == []
    assert os.listdir(state) == []


def test_a_snapshot_with_an_unreadable_record_is_listed_and_keeps_its_archive(state: Path) -> None:
    store = ArchiveStore()
    kept = replace(KEPT, id=store.new_id())
    with store.partial("one") as file:
        store.keep(file, kept)
    record = state / f"{kept.id}.json"
    known = record.read_text()
    for text in (known.replace('"name"', '"new"'), known[:-9]):
        record.write_text(text)
        (info,) = Snapshot.list(provider="kubernetes").result(60)
        assert (info.id, info.info.expires_at) == (kept.id, None)
        assert f"run sandboxkit snapshots rm {kept.id}" in str(info.info.name)
        with pytest.raises(errors.ConfigurationError, match=f"unreadable.*snapshots rm {kept.id}"):
            store.load(kept.id)
        assert len(os.listdir(state)) == 2
    store.remove(kept.id)
    assert os.listdir(state) == []


def test_a_cancelled_snapshot_leaves_the_sandbox_as_it_was(namespace: str, state: Path) -> None:
    make = "mkdir a; echo x > a/closed; chmod 0 a a/closed; head -c 200000000 /dev/urandom > big"
    look = "stat -c %a a; cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -cx keep"
    with Session("kubernetes") as session, session.sandbox() as base:
        base.exec(["sh", "-c", make], check=True).result(60)
        taking = base.snapshot()
        wait_until(lambda: _is_written(state), "the first bytes of the archive")
        taking.cancel()

        def is_over() -> bool:
            try:
                seen = base.exec(["sh", "-c", look]).result(60)
            except errors.SandboxPausedError:  # the cancelled call has not gone on yet
                return False
            return seen.stdout.split() == ["0", "0"]

        wait_until(is_over, "the end of the program that reads the files")
    assert os.listdir(state) == []


def _is_written(state: Path) -> bool:
    return any(path.stat().st_size > 1 << 20 for path in state.glob(".partial-*"))


def test_a_pod_without_root_keeps_the_files_of_its_only_user(namespace: str, state: Path) -> None:
    make = "echo 1 > a; mkdir -m 700 /tmp/b; echo 2 > /tmp/b/c; chmod 0 /tmp/b/c; mkdir -m 0 /tmp/d"
    show = "cat a; stat -c '%n %a %u %Y' a /tmp/b /tmp/d /tmp/b/c"
    restricted = KubernetesProvider(security="restricted")
    with Session(restricted, network="internet") as session:
        with session.sandbox() as base:
            base.exec(["sh", "-c", make], check=True).result(60)
            before = base.exec(["sh", "-c", show], check=True).result(60)
            snapshot = base.snapshot().result(60)
        with session.sandbox(snapshot=snapshot) as other:
            assert other.exec(["sh", "-c", show]).result(60).stdout == before.stdout
        with (
            Session("kubernetes") as another,
            pytest.raises(errors.ConfigurationError, match="security="),
        ):
            another.sandbox(snapshot=snapshot).start().result(60)
        snapshot.delete().result(60)
    assert os.listdir(state) == []


@contextmanager
def _owner(until: str, kind: str = "attached") -> Iterator[None]:
    """A process that has begun to capture, start or fork; it is killed at the end of the block."""
    argv = [sys.executable, "-c", _PROGRAMS["owner"], kind]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        try:
            assert owner.stdout is not None
            while (line := owner.stdout.readline()) != f"{until}\n".encode():
                assert line, f"it ended before {until!r}"
            yield
        finally:
            os.kill(owner.pid, signal.SIGKILL)


def _clean_up() -> None:
    for what in ((), ("--snapshots",)):
        argv = ["cleanup", "-p", "kubernetes", *what, "--tag", "killed"]
        subprocess.run([sys.executable, "-m", "sandboxkit", *argv], check=True, timeout=60)


@pytest.mark.parametrize(
    "moments", [3, pytest.param(50, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])]
)
def test_owners_that_are_killed_leave_only_what_has_a_ttl(
    namespace: str,
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
    found_cluster: Cluster,
    moments: int,
) -> None:
    monkeypatch.setenv("SANDBOXKIT_KUBERNETES_LEASE", "8")
    random = Random(28)
    for number in range(moments):
        with _owner(("capture", "start", "fork")[number % 3]):
            time.sleep(random.random())
        kept = Snapshot.list(("killed",), provider="kubernetes").result(60)
        assert len(list(state.glob("*"))) == 2 * len(kept)

    def alive() -> list[str]:
        found = sandboxes(found_cluster, namespace)
        return [each for each in found if each.endswith(("(Running)", "(Pending)"))]

    wait_until(lambda: not alive(), "the end of its sandboxes", seconds=120)
    _clean_up()
    assert os.listdir(state) == []
    assert sandboxes(found_cluster, namespace) == []


def test_a_detached_sandbox_goes_on_when_the_owner_is_killed_during_a_snapshot(
    namespace: str, state: Path, monkeypatch: pytest.MonkeyPatch, found_cluster: Cluster
) -> None:
    monkeypatch.setenv("SANDBOXKIT_KUBERNETES_LEASE", "8")
    with _owner("capture", "detached"):
        wait_until(lambda: _is_written(state), "the first bytes of the archive")
    with Session("kubernetes") as session:
        sandbox_id = sandboxes(found_cluster, namespace)[0].split()[0]
        sandbox = session.from_id(sandbox_id).result(60)

        def goes_on() -> bool:
            try:
                return sandbox.exec(["echo", "goes on"]).result(60).stdout == "goes on\n"
            except errors.SandboxPausedError:
                return False

        wait_until(goes_on, "the sandbox that was paused")
    _clean_up()
    assert os.listdir(state) == []
