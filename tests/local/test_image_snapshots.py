"""Snapshots of sandboxes with an image: what they keep, and the image on which they lie."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxkit import Dataset, Image, Sandbox, Session, Snapshot, errors
from sandboxkit.providers.local import LocalProvider, _snapshot_store
from sandboxkit.types import SnapshotRequest
from tests.components import needs_mounts, needs_root
from tests.local.conftest import PROGRAMS, launched, mounted
from tests.local.test_host_uid import as_ordinary_user
from tests.local.test_image import docker_save, layer, tar_of  # noqa: F401  # the fixture

pytestmark = [pytest.mark.anyio, needs_root("root starts programs as other users and mounts")]


@pytest.fixture
def image(layer: bytes, tmp_path: Path) -> str:  # noqa: F811
    """An archive of an image, with a folder in which a snapshot changes nothing but the mode."""
    folders = dict.fromkeys(("home", "home/below", "usr/lib/keep"))
    more = tar_of({**folders, "usr/lib/keep/file": b""})
    return str(docker_save(tmp_path / "image.tar", [layer, more]))


@pytest.fixture
def folder(layer: bytes, tmp_path: Path) -> str:  # noqa: F811
    """A folder of root that serves as an image, with /root that nobody else may read, as distributions have it."""
    root = tmp_path / "rootfs"
    root.mkdir()
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        tar.extractall(root)
    for name in ("root", "home/private"):
        (root / name).mkdir(mode=0o700, parents=True)
        (root / name / "own").touch()
    return str(root)


async def taken(session: Session, image: str, *argv: str) -> Snapshot:
    """A snapshot of a sandbox of an image, in which this command has run, if there is one."""
    async with session.sandbox(image=image) as base:
        if argv:
            done = await base.exec(list(argv))
            assert done.returncode == 0, done.stderr
        return await base.snapshot()


def root_of(provider: LocalProvider, snapshot: Snapshot) -> Path:
    """What a snapshot has of the root."""
    return provider.state.path / "snapshots" / snapshot.id / "root"


async def test_a_snapshot_has_what_the_sandbox_changed_and_starts_over_its_image(
    provider: LocalProvider, session: Session, image: str
) -> None:
    snapshot = await taken(session, image, "sh", "-c", PROGRAMS["changes_an_image"])
    assert not (root_of(provider, snapshot) / "usr/bin/sh").exists()  # the image has it
    assert not (root_of(provider, snapshot) / "usr/lib/keep/file").exists()
    etc = [
        "/etc:",
        "hosts",
        "kept",
        "kept2",
        "new",
        "passwd",
        "resolv.conf",
        "/usr/lib/keep:",
        "file",
    ]
    for given in (None, image):
        async with session.sandbox(snapshot=snapshot, image=given) as other:
            seen = await other.exec(["sh", "-c", PROGRAMS["looks_at_an_image"]])
            rest = ["/workspace:", "here", "new", "kept", "more", "/home:", "yes"]
            assert seen.stdout.split() == [*etc, *rest], seen.stdout
            assert "/usr/bin/mv" in seen.stderr
            assert (await other.status()).image == image
            with pytest.raises(errors.SnapshotInUseError):
                await snapshot.delete()


async def test_chains_of_snapshots_and_forks_lie_on_one_image(session: Session, image: str) -> None:
    one = await taken(session, image, "sh", "-c", "echo 1 > 1; echo 1 > both; rm /etc/old")
    async with session.sandbox(snapshot=one) as second:
        again = "echo 2 > 2; echo 2 > both; rm 1; echo back > /etc/old; rm /etc/kept"
        await second.exec(["sh", "-c", again], check=True)
        two = await second.snapshot()
        (fork,) = await second.fork(1)
        assert isinstance(fork, Sandbox)
    await one.delete()
    async with session.sandbox(snapshot=two) as third:
        for each in (fork, third):
            seen = await each.exec(["sh", "-c", "ls; cat both /etc/old; ls /etc"])
            listed = "2\nboth\n2\nback\nhosts\nold\npasswd\nresolv.conf\n"
            assert seen.stdout.replace("\n\n", "\n") == listed
    await fork.stop()


async def test_an_image_that_has_changed_or_is_gone_is_an_error_with_a_remedy(
    provider: LocalProvider, session: Session, image: str, tmp_path: Path
) -> None:
    snapshot = await taken(session, image)
    shutil.rmtree(tmp_path / "cache")
    why = "has changed since.*take the snapshot again"
    with pytest.raises(errors.ConfigurationError, match=why):
        await session.sandbox(snapshot=snapshot).start()
    os.unlink(image)
    with pytest.raises(errors.ImageNotFoundError, match="does not exist here"):
        await session.sandbox(snapshot=snapshot).start()
    with pytest.raises(errors.ConfigurationError, match="leave image= out"):
        await session.sandbox(snapshot=snapshot, image="/elsewhere").start()
    assert [info.id async for info in provider.list({})] == []


async def test_strict_sandboxes_with_an_image_have_no_snapshots(
    provider: LocalProvider, image: str
) -> None:
    async with Session(provider, image=image, profile="strict") as session:
        why = "profile='strict'.*use profile='standard'"
        with pytest.raises(errors.ConfigurationError, match=why):
            session.sandbox().snapshot()
        sandbox = await session.sandbox().start()
        request = SnapshotRequest("files", None, {}, 2e9)
        with pytest.raises(errors.ConfigurationError, match="profile='strict'"):
            await provider.box(sandbox.id or "").take_snapshot(request)


async def test_a_recipe_begins_with_an_image_and_goes_first_where_there_is_no_room(
    provider: LocalProvider, session: Session, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(_snapshot_store.LIMIT_VARIABLE, "1")
    fill = "cat /bin/* /lib/* | head -c 600000 > /etc/large"
    recipe = Image(image).run("touch /etc/new")
    first = await recipe.build(provider)
    more = await recipe.run(fill).build(provider)
    assert (await recipe.build(provider)).id == first.id
    async with session.sandbox(snapshot=more) as sandbox, session.sandbox(image=image) as other:
        assert (await sandbox.exec(["ls", "/etc/new", "/etc/large"])).returncode == 0
        await other.exec(["sh", "-c", fill], check=True)
        with pytest.raises(errors.CapacityError):
            await other.snapshot()
        await sandbox.stop()
        await other.snapshot()  # for which the image had to go
    with pytest.raises(errors.SnapshotNotFoundError):
        await session.sandbox(snapshot=more).start()


async def test_ordinary_users_have_image_snapshots(
    image: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.mkdir()
    monkeypatch.setenv("SANDBOXKIT_CACHE_DIR", str(state / "cache"))
    shutil.copy(image, state / "image.tar")  # where that user sees it
    (state / "image.tar").chmod(0o644)
    out = await as_ordinary_user(PROGRAMS["ordinary_users_image"], state)
    assert out == "['hosts', 'kept', 'new', 'passwd', 'resolv.conf']\n"


async def test_a_program_cannot_change_a_file_unnoticed(session: Session, image: str) -> None:
    """Size, mode and time of modification are as before; the time of change is not."""
    forge = "touch -r /etc/kept /ref; head -c 5 /etc/old > /etc/kept; echo >> /etc/kept; rm /ref"
    snapshot = await taken(session, image, "sh", "-c", forge)
    async with session.sandbox(snapshot=snapshot) as other:
        assert (await other.read_file("/etc/kept")).startswith(b"old")


async def test_a_failed_capture_leaves_no_descriptor_open(session: Session, folder: str) -> None:
    for name, mode in (("run", 0o711), ("root", 0o755), ("home/private", 0o755)):
        Path(folder, name).mkdir(exist_ok=True)
        Path(folder, name).chmod(mode)  # a sandbox can make files in /run, and nobody can list them
    async with session.sandbox(image=folder) as sandbox:
        before = os.listdir("/proc/self/fd")
        with pytest.raises(errors.ConfigurationError, match=r"'/run'.*make it readable"):
            await sandbox.snapshot()
        assert {*os.listdir("/proc/self/fd")} <= {*before}, "another file may be closed meanwhile"


async def test_folders_that_only_the_owner_of_an_image_may_read_stay_the_images(
    provider: LocalProvider, session: Session, folder: str
) -> None:
    change = "echo new > /etc/new; touch /home/new"
    look = "ls -d /root /home/*; ls /root /home/private; cat /etc/new"
    snapshot = await taken(session, folder, "sh", "-c", change)
    async with session.sandbox(snapshot=snapshot) as other:
        seen = await other.exec(["sh", "-c", look])
        assert seen.stdout.split() == ["/home/new", "/home/private", "/root", "/root:", "new"]
        assert seen.stderr.count("Permission denied") == 2
        chained = await other.snapshot()
    for each in (snapshot, chained):
        assert os.listdir(root_of(provider, each) / "home") == ["new"]


@contextmanager
def overlaid(state: Path, tmp_path: Path) -> Iterator[None]:
    """Make the state folder an overlay meanwhile, as a container's own files are."""
    layers = {name: tmp_path / name for name in ("lower", "upper", "work")}
    for path in layers.values():
        path.mkdir(mode=0o700)
    options = ",".join(f"{name}dir={path}" for name, path in layers.items())
    with mounted(state, options, "overlay"):
        yield


@needs_mounts("an overlay")
async def test_a_snapshot_that_cannot_be_mapped_in_the_state_folder_lies_beside_the_images(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with overlaid(state, tmp_path):
        provider = LocalProvider()
        provider.state._path = state
        monkeypatch.delenv("SANDBOXKIT_STATE_DIR")
        async with Session(provider) as session, session.sandbox() as sandbox:
            kept = await sandbox.snapshot()
            assert os.listdir(tmp_path / "cache" / "state" / "snapshots") == [kept.id]
            assert (tmp_path / "cache" / "state").stat().st_mode & 0o077 == 0
            async with session.sandbox(snapshot=kept) as other:
                await other.exec(["true"])
                init = launched(provider, other.id or "").init_pid
                assert os.stat(f"/proc/{init}").st_uid != provider.host.owner()[0]
        await kept.delete()
        await provider.aclose()


@needs_mounts("an overlay")
async def test_a_state_folder_that_keeps_no_marks_of_deleted_files_is_an_error_with_the_remedy(
    state: Path, image: str, tmp_path: Path
) -> None:
    with overlaid(state, tmp_path):
        provider = LocalProvider()
        async with Session(provider, image=image) as session, session.sandbox() as sandbox:
            kept = await sandbox.snapshot()
            await sandbox.exec(["rm", "/etc/old"], check=True)
            why = f"{state}.*set SANDBOXKIT_STATE_DIR"
            with pytest.raises(errors.ConfigurationError, match=why):
                await sandbox.snapshot()
        await kept.delete()
        await provider.aclose()


async def test_a_socket_replaces_an_images_file(
    provider: LocalProvider, session: Session, image: str
) -> None:
    async with session.sandbox(image=image) as base:
        await base.exec(["rm", "/etc/old"], check=True)
        init = launched(provider, base.id or "").init_pid
        made = [f"/proc/{init}/root/etc", "old", str(os.stat(f"/proc/{init}").st_uid)]
        subprocess.run([sys.executable, "-c", PROGRAMS["makes_a_socket"], *made], check=True)
        snapshot = await base.snapshot()
    async with session.sandbox(snapshot=snapshot) as other:
        seen = await other.exec(["ls", "/etc"])
        assert seen.stdout.split() == ["hosts", "kept", "passwd", "resolv.conf"]


async def test_modes_of_the_images_common_folders_are_kept(session: Session, folder: str) -> None:
    modes = {"/": "555", "/etc": "700", "/home": "500", "/tmp": "1770", "/var": "711"}
    modes = {"/var/tmp": "1755", **modes}
    Path(folder, "var/tmp").mkdir()
    change = "; ".join(f"chmod {mode} {path}" for path, mode in modes.items())
    snapshot = await taken(session, folder, "sh", "-c", change)
    async with session.sandbox(snapshot=snapshot) as other:
        seen = (await other.exec(["ls", "-ld", *modes])).stdout.splitlines()
        # `ls` sorts its arguments.
        expected = "dr-xr-xr-x drwx------ dr-x------ drwxrwx--T drwx--x--x drwxr-xr-t"
        assert [line.split()[0] for line in seen] == expected.split(), seen


async def test_a_relative_name_means_the_same_image_in_another_folder(
    session: Session, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with session.sandbox(image="image.tar") as base:
        monkeypatch.chdir("/")
        snapshot = await base.snapshot()
    async with session.sandbox(snapshot=snapshot) as other:
        assert (await other.status()).image == image
    monkeypatch.chdir(tmp_path)
    async with session.sandbox(snapshot=snapshot, image="./image.tar"):
        pass


async def test_a_snapshot_lies_on_the_image_with_which_its_sandbox_started(
    provider: LocalProvider,
    session: Session,
    image: str,
    layer: bytes,  # noqa: F811
    tmp_path: Path,
) -> None:
    async with session.sandbox(image=image) as sandbox:
        docker_save(Path(image), [layer])  # another image of this name
        snapshot = await sandbox.snapshot()
        assert not (root_of(provider, snapshot) / "usr/lib/keep").exists()  # the first image has it
        with pytest.raises(errors.ConfigurationError, match="has changed since"):
            await session.sandbox(snapshot=snapshot).start()
        os.unlink(image)
        await sandbox.snapshot()
        shutil.rmtree(tmp_path / "cache")
        with pytest.raises(errors.ImageNotFoundError, match="its files are gone"):
            await sandbox.snapshot()


async def test_old_records_and_changed_folders_are_refused_unless_their_content_always_changes(
    provider: LocalProvider, session: Session, folder: str
) -> None:
    changing = [Path(folder, name) for name in ("dev", "proc", "run", "sys", "tmp")]
    for path in changing:
        path.mkdir(exist_ok=True)
    async with session.sandbox(image=folder) as sandbox:
        record = provider.box(sandbox.id or "")._living()
        provider.state.update(replace(record, used_image=None))
        with pytest.raises(errors.ConfigurationError, match="by an older version"):
            await sandbox.snapshot()
        provider.state.update(record)
        for path in changing:
            (path / "new").touch()
        async with session.sandbox(snapshot=await sandbox.snapshot()):
            Path(folder, "opt").mkdir()
        with pytest.raises(errors.ConfigurationError, match="has changed since sandbox"):
            await sandbox.snapshot()


async def test_mounts_are_checked_against_the_image_of_the_snapshot(
    provider: LocalProvider, session: Session, image: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").touch()
    mounts = {"/usr/share/data": Dataset(tmp_path / "data")}
    snapshot = await taken(session, image)
    async with session.sandbox() as plain:
        without = await plain.snapshot()
    async with session.sandbox(snapshot=snapshot, mounts=mounts) as other:
        assert (await other.exec(["ls", "/usr/share/data"])).stdout == "file\n"
    why = "mounts='/usr/share/data': without an image"
    with pytest.raises(errors.ConfigurationError, match=why):
        await session.sandbox(snapshot=without, mounts=mounts).start()
    shutil.rmtree(provider.state.path / "datasets")
