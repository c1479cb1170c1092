"""Snapshots on this machine: hostile files, dead owners, full disks, ordinary users and many forks."""

import os
import shutil
import time
from pathlib import Path

import anyio
import pytest

from sandboxkit import Dataset, Image, Sandbox, Session, Snapshot, errors
from sandboxkit._life import _cleanup
from sandboxkit.providers.local import LocalProvider, _copier, _snapshot_store
from tests.components import needs_mounts, needs_root
from tests.local.conftest import PROGRAMS, client, mounted

pytestmark = [pytest.mark.anyio, needs_root("root starts programs as other users and mounts")]


async def test_links_for_folders_do_not_lead_out_of_the_sandbox(
    session: Session, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o777)
    hostile = (
        f"rmdir /home /opt && ln -s {victim} /home && ln -s / /opt && mv /etc /etc2 && ln -s {victim} /etc"
        f" && ln -s {victim} /data && rm -rf /tmp && ln -s {victim} /tmp"
    )
    async with session.sandbox(user="root") as sandbox:
        done = await sandbox.exec(["sh", "-c", hostile])
        assert done.returncode == 0, done.stderr
        snapshot = await sandbox.snapshot()
    async with session.sandbox(snapshot=snapshot, user="root") as other:
        kinds = await other.exec(["sh", "-c", "stat -c %F /home /opt /etc /tmp /data"])
        assert kinds.stdout.splitlines() == ["directory"] * 4 + ["symbolic link"]
    (tmp_path / "dataset").mkdir()
    mounts = {"/data": Dataset(tmp_path / "dataset")}
    with pytest.raises(errors.SandboxStartError, match="/data"):
        await session.sandbox(snapshot=snapshot, mounts=mounts).start()
    assert os.listdir(victim) == []
    shutil.rmtree(Path(os.environ["SANDBOXKIT_STATE_DIR"], "datasets"))


async def test_attributes_of_overlays_are_not_kept(session: Session) -> None:
    async with session.sandbox() as sandbox:
        await sandbox.exec(["python3", "-c", PROGRAMS["sets_attributes_of_overlays"]], check=True)
        snapshot = await sandbox.snapshot()
    async with session.sandbox(snapshot=snapshot) as other:
        assert (await other.exec(["ls", "a"])).stdout == ""
        look = "import os; print(os.listxattr('a'))"
        assert (await other.exec(["python3", "-c", look])).stdout == "[]\n"


async def test_a_fork_has_the_limits_of_a_fresh_sandbox(session: Session) -> None:
    async with session.sandbox(disk_mb=8) as sandbox:
        await sandbox.exec(["sh", "-c", "head -c 4M /dev/zero > file"], check=True)
        (fork,) = await sandbox.fork(1)
        assert isinstance(fork, Sandbox)
        full = await fork.exec(["sh", "-c", "head -c 20M /dev/zero > more; stat -c %s more"])
        assert "No space left" in full.stderr
        assert int(full.stdout) <= 8 << 20
        changed = await fork.exec(["sh", "-c", "touch /usr/x /proc/sys/kernel/core_pattern; id -u"])
        assert changed.stdout == "1000\n"
        assert changed.returncode == 0
        look = ["grep", "-E", "CapEff|NoNewPrivs|Seccomp:", "/proc/self/status"]
        assert (await fork.exec(look)).stdout == (await sandbox.exec(look)).stdout
        await fork.stop()


@needs_mounts("a small file system")
async def test_a_full_disk_is_an_error_of_the_infrastructure_with_figures(state: Path) -> None:
    with mounted(state, "size=8m,mode=0700"):
        provider = LocalProvider()
        async with Session(provider) as session, session.sandbox() as sandbox:
            await Image().run("head -c 3M /dev/urandom > file").build(provider)
            await sandbox.exec(["sh", "-c", "head -c 6M /dev/urandom > file"], check=True)
            kept = await sandbox.snapshot()  # for which the image had to go
            assert os.listdir(state / "snapshots") == [kept.id]
            damaged = state / "snapshots" / "snapshot-0123456789abcdef"
            damaged.mkdir()
            (damaged / "meta.json").write_text("{")
            figures = r"8388608 bytes was full after \d{7} bytes"
            with pytest.raises(errors.CapacityError, match=figures):
                await sandbox.snapshot()
            assert [each.id async for each in provider.list_snapshots({})] == [kept.id]
            with pytest.raises(errors.SnapshotNotFoundError, match=f"snapshots rm {damaged.name}"):
                await session.sandbox(snapshot=damaged.name).start()
            await provider.delete_snapshot(damaged.name)
            assert os.listdir(state / "snapshots") == [kept.id]
            assert (await sandbox.exec(["true"])).returncode == 0
        await provider.aclose()


async def test_least_recently_used_images_make_room_and_other_snapshots_stay(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = session._provider

    async def build(name: str) -> Snapshot:
        return await Image().run(f"head -c 10M /dev/urandom > {name}").build(provider)

    async def stored() -> set[str]:
        return {info.id async for info in provider.list_snapshots({})}

    monkeypatch.setenv("SANDBOXKIT_SNAPSHOTS_MB", "35")
    async with session.sandbox() as sandbox:
        kept = await sandbox.snapshot()
        first, second, third = [await build(name) for name in ("first", "second", "third")]
        async with session.sandbox(snapshot=first):
            (info,) = [each async for each in provider.list_snapshots({}) if each.id == first.id]
            assert info.used_at is not None
            assert info.used_at > third.info.created_at
            assert second.info.used_at is None
            fourth = await build("fourth")
            assert await stored() == {kept.id, first.id, third.id, fourth.id}
            assert (await build("third")).id == third.id  # found, which counts as a use
            fifth = await build("fifth")
            assert await stored() == {kept.id, first.id, third.id, fifth.id}
            await sandbox.exec(["sh", "-c", "head -c 20M /dev/urandom > large"], check=True)
            large = await sandbox.snapshot()
            assert await stored() == {kept.id, first.id, large.id}
            figures = r"2\d{7} bytes and .* not .* 36700160 bytes .* 3 others"
            with pytest.raises(errors.CapacityError, match=figures):
                await sandbox.snapshot()
            assert await stored() == {kept.id, first.id, large.id}
        monkeypatch.setenv("SANDBOXKIT_SNAPSHOTS_MB", "all")
        with pytest.raises(errors.ConfigurationError, match="SNAPSHOTS_MB='all'"):
            await sandbox.snapshot()


@needs_mounts("a small file system")
async def test_the_limit_counts_whole_blocks(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_snapshot_store, "_SHARE", 0.4)  # the sandboxes are on the same disk
    with mounted(state, "size=64m,nr_inodes=10000,mode=0700"):
        provider = LocalProvider()
        async with Session(provider) as session:
            empty = session.sandbox()
            await empty.exec(["sh", "-c", "seq 1500 | xargs touch"], check=True)
            image = await Image().run("seq 1500 | xargs touch").build(provider)
            first = await empty.snapshot()
            assert {image.id, first.id} == {*os.listdir(state / "snapshots")}
            second = await empty.snapshot()  # for which the image had to go
            assert {first.id, second.id} == {*os.listdir(state / "snapshots")}
            figures = r" and 15\d\d files .* and 4000 files.* 2 others"
            with pytest.raises(errors.CapacityError, match=figures):
                await empty.snapshot()
            small = session.sandbox()
            script = "for n in $(seq 600); do echo x > $n; done"  # 600 pages of 4096 bytes
            await small.exec(["sh", "-c", script], check=True)
            monkeypatch.setenv("SANDBOXKIT_SNAPSHOTS_MB", "2")
            figures = r"snapshot of 2\d{6} bytes .* 2097152 bytes"
            with pytest.raises(errors.CapacityError, match=figures):
                await small.snapshot()
            assert first.bytes == 0
        await provider.aclose()


async def test_providers_by_name_follow_the_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "one"))
    async with Session("local") as session, session.sandbox() as sandbox:
        kept = await sandbox.snapshot()
    for name, expected in (("one", [kept.id]), ("other", []), ("one", [kept.id])):
        monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / name))
        assert [each.id for each in await Snapshot.list(provider="local")] == expected


@pytest.mark.parametrize("where", ["here", "in a process"])
async def test_programs_go_on_when_the_taker_of_a_snapshot_is_killed(
    session: Session, where: str
) -> None:
    provider = session._provider
    async with session.sandbox() as sandbox:
        await sandbox.exec(["sh", "-c", PROGRAMS["ticks"]], check=True)
        with client(PROGRAMS["hangs_while_it_copies"], str(sandbox.id), where) as taker:
            assert taker.stdout is not None
            assert await anyio.to_thread.run_sync(taker.stdout.readline) == "copying\n"
            first = await sandbox.read_file("/workspace/tick")
            await anyio.sleep(0.3)
            assert await sandbox.read_file("/workspace/tick") == first, "it stands still"
            taker.kill()
        with anyio.fail_after(60):
            while await sandbox.read_file("/workspace/tick") == first:
                await anyio.sleep(0.02)
        assert [info async for info in provider.list_snapshots({})] == []
        assert os.listdir(Path(os.environ["SANDBOXKIT_STATE_DIR"], "snapshots")) == []


async def test_a_long_copy_is_made_by_a_process_that_ends_when_it_is_cancelled(
    session: Session, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    monkeypatch.setattr(_copier, "_QUICK", 0.001)
    monkeypatch.setattr(_copier, "_BUSY", 9e9)
    monkeypatch.setattr(_copier, "copied", None)  # what this process would call
    async with session.sandbox() as sandbox:
        await sandbox.exec(["sh", "-c", "seq 15000 | xargs touch; sleep 600 &"], check=True)
        taking = sandbox.snapshot()
        with anyio.fail_after(60):
            while not [*state.glob("snapshots/.temporary-*/*/root/workspace/*")]:
                await anyio.sleep(0.001)
        taking.cancel()
        with anyio.fail_after(60):
            while os.listdir(state / "snapshots"):
                await anyio.sleep(0.001)
        assert (await sandbox.exec(["sh", "-c", "ls | wc -l"])).stdout == "15000\n"
        monkeypatch.setattr(_copier, "_RUN", "import _signal, os; os.kill(os.getpid(), 9)")
        with pytest.raises(errors.ProviderUnavailableError, match="was killed"):
            await sandbox.snapshot()
        assert (await sandbox.exec(["cat", "1"])).returncode == 0


async def test_an_expired_snapshot_goes_with_the_next_session_and_no_other_with_a_clock_that_is_ahead(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, clock = session._provider, time.time
    async with session.sandbox() as sandbox:
        await sandbox.snapshot(ttl=0.001)
        kept = await sandbox.snapshot(ttl=3600)
        time.sleep(0.01)
        async with Session(provider) as other, other.sandbox():
            with anyio.fail_after(60):
                while [info.id async for info in provider.list_snapshots({})] != [kept.id]:
                    await anyio.sleep(0.02)
        monkeypatch.setattr(time, "time", lambda: clock() + 1e6)
        assert await _cleanup.sweep_snapshots(provider) == []
        monkeypatch.setenv("SANDBOXKIT_SNAPSHOTS_MB", "1")
        await sandbox.exec(["sh", "-c", "head -c 2M /dev/zero > large"], check=True)
        with pytest.raises(errors.CapacityError, match="1 others"):
            await sandbox.snapshot()
        assert [info.id async for info in provider.list_snapshots({})] == [kept.id]


async def test_many_forks_and_snapshots_keep_no_descriptor(session: Session) -> None:
    snapshot: Snapshot | None = None

    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    counts = []
    for _ in range(6):
        async with session.sandbox(snapshot=snapshot) as sandbox:
            await sandbox.exec(["touch", "x"])
            snapshot = await sandbox.snapshot()
        counts.append(opened())
    with anyio.fail_after(60):  # some are closed a moment later
        while opened() > counts[1]:
            await anyio.sleep(0.01)


async def test_a_snapshot_belongs_to_a_profile_and_has_no_image(session: Session) -> None:
    async with session.sandbox() as sandbox:
        snapshot = await sandbox.snapshot()
    with pytest.raises(errors.ConfigurationError, match="profile='strict'"):
        await session.sandbox(snapshot=snapshot, profile="strict").start()
    with pytest.raises(errors.ConfigurationError, match="image=None; leave image= out"):
        await session.sandbox(snapshot=snapshot, image="/").start()
