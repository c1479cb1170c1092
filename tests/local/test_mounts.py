"""Datasets and volumes in local sandboxes: whoever starts them, whatever ends them."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import Dataset, DatasetNotFoundError, Session, VolumeError
from sandboxkit.datasets import DatasetStore
from sandboxkit.provider import Provider
from sandboxkit.providers.local import LocalProvider
from sandboxkit.types import SandboxSpec
from tests.components import needs_root
from tests.local.conftest import PROGRAMS, client, ended, said
from tests.local.test_host_uid import as_ordinary_user
from tests.local_here import require_local

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one file."""
    made = tmp_path / "data"
    made.mkdir()
    (made / "file").write_text("content")
    return made


@pytest.fixture
async def owner(state: Path, anyio_backend: str) -> AsyncIterator[LocalProvider]:
    """A provider whose state folder keeps datasets and volumes in the end."""
    provider = LocalProvider()
    yield provider
    async for info in provider.list({}):
        await provider.box(info.id).delete()
    await provider.aclose()


def removed() -> list[str]:
    """What another process removes as unused."""
    with client(PROGRAMS["unused"]) as process:
        return process.communicate(timeout=60)[0].split()


@needs_root("root starts a program as another user")
async def test_an_ordinary_user_mounts_a_dataset(state: Path, folder: Path) -> None:
    state.mkdir()
    folder.rename(state / "data")  # the user sees no other folder of this test
    code = PROGRAMS["with_dataset"].format(folder=str(state / "data"), detach=False)
    out = await as_ordinary_user(code + "await provider.aclose()", state)
    assert out.splitlines()[0] == "['content', 'content'] 4"


async def test_a_dataset_of_a_detached_sandbox_is_kept(owner: LocalProvider, folder: Path) -> None:
    with client(PROGRAMS["with_dataset"].format(folder=str(folder), detach=True)) as process:
        box = owner.box(process.communicate(timeout=60)[0].splitlines()[-1])
    assert removed() == []
    assert await box.read_file("/data/file", max_bytes=100) == b"content"
    async for info in owner.list({}):
        await owner.box(info.id).delete()
    assert len(removed()) == 1


async def test_a_dataset_of_a_killed_owner_is_removed(state: Path, folder: Path) -> None:
    code = PROGRAMS["with_dataset"].format(folder=str(folder), detach=False) + "sys.stdin.read()"
    with client(code) as process:
        await said(process)
        assert removed() == []
        await ended(process, signal.SIGKILL)
    assert len(removed()) == 1


def test_a_digest_that_was_removed_is_an_error_before_the_start(folder: Path) -> None:
    code = "from sandboxkit import Dataset\n" + f"print(Dataset({str(folder)!r}).digest)"
    with client(code) as process:
        digest = process.communicate(timeout=60)[0].strip()
    with Session("local", mounts={"/data": Dataset(digest=digest)}) as session:
        session.run(["true"]).result(60)
        DatasetStore().use(digest).rename(folder.parent / "moved")
        with pytest.raises(DatasetNotFoundError, match=digest):
            session.run(["true"]).result(60)


def test_a_mount_is_nosuid_and_nodev(folder: Path) -> None:
    with Session("local", mounts={"/data": Dataset(folder)}) as session:
        found = session.run(["grep", " /data ", "/proc/self/mountinfo"]).result(60).stdout
    assert {"ro", "nosuid", "nodev"} <= set(found.split()[5].split(","))


def odd_dataset(folder: Path) -> Dataset:
    """A dataset of the folder's "file", long names, one that is no text, a link, a mode and nothing."""
    long = folder / ("a" * 200) / ("b" * 200)
    long.mkdir(parents=True)
    (long / os.fsdecode(b"not-utf8-\xff")).write_bytes(b"x" * 513)
    (long / "run").touch(0o700)
    (folder / "link").symlink_to("file")
    (folder / "empty").mkdir()
    return Dataset(folder)


def assert_it_arrives_whole(provider: Provider | str, dataset: Dataset, **options: Any) -> None:
    """Compare what is mounted with this machine's copy of an `odd_dataset`."""
    show = (
        "find -P . -mindepth 1 -printf '%P %y %m %T@ %l\\n'; find -P . -type f -exec sha256sum {} +"
    )
    with Session(provider, mounts={"/data": dataset}, **options) as session:
        inside = session.run(["sh", "-c", f"cd /data; {show}"]).result(120).stdout_bytes
    stored = DatasetStore().use(dataset.digest)
    here = subprocess.run(["sh", "-c", show], cwd=stored, capture_output=True, check=True)
    assert sorted(inside.splitlines()) == sorted(here.stdout.splitlines())
    assert len(inside.splitlines()) == 10


def assert_a_reset_keeps_mounts(provider: Provider | str, dataset: Dataset, **options: Any) -> None:
    """Use one sandbox three times; `dataset` has nothing but "file"."""
    mounts = {"/data": dataset, "/workspace/given": dataset}
    once: dict[str, Any] = {"profile": "strict", "pool": 1, "max_concurrency": 1, **options}
    with Session(provider, mounts=mounts, reuse="reset", **once) as session:
        seen = set()
        for _ in range(3):
            script = "cat /data/file; cmp /data/file given/file; ls; touch left /tmp/left"
            done = session.run(["sh", "-c", f"{script}; rm -rf /workspace"]).result(120)
            seen.add((done.stdout, done.stderr))
        assert len(seen) == 1, seen
        assert seen.pop()[0].removesuffix("given\n").isalnum(), seen
        stats = session.pool_stats()
        assert (stats.made, stats.thrown_away) == (1, {})
        assert stats.reset >= 2


def test_a_reset_keeps_a_mount_and_proves_the_rest(folder: Path) -> None:
    assert_a_reset_keeps_mounts("local", Dataset(folder))


VOLUME_MOUNTS = {"/cache": "volume:pip"}
OUTCOME = ["[b'1', b'/cache/file', b'2', b'/cache/file', b'3', b'/cache/file'] ['pip']", "b'' []"]


async def test_sandboxes_of_every_user_own_what_is_in_a_volume(state: Path) -> None:
    with client(PROGRAMS["shared"]) as process:
        assert process.communicate(timeout=60)[0].splitlines() == OUTCOME


@needs_root("root starts a program as another user")
async def test_an_ordinary_users_sandboxes_own_what_is_in_a_volume(state: Path) -> None:
    assert (await as_ordinary_user(PROGRAMS["shared"], state)).splitlines() == OUTCOME


async def test_a_volume_of_a_killed_owner_stays_and_can_be_removed(owner: LocalProvider) -> None:
    with client(PROGRAMS["with_volume"].format(detach=False) + "sys.stdin.read()") as process:
        await said(process)
        await ended(process, signal.SIGKILL)
    box = await owner.create(SandboxSpec(mounts=VOLUME_MOUNTS))
    assert await box.read_file("/cache/file", max_bytes=9) == b"content"
    await box.delete()
    await owner.remove_volume("pip")
    assert await owner.list_volumes() == []


async def test_a_volume_of_a_detached_sandbox_is_in_use(owner: LocalProvider) -> None:
    with client(PROGRAMS["with_volume"].format(detach=True)) as process:
        box = owner.box(process.communicate(timeout=60)[0].strip())
    with pytest.raises(VolumeError, match="'pip' is in use"):
        await owner.remove_volume("pip")
    await box.delete()
    await owner.remove_volume("pip")


async def test_a_volume_that_is_made_again_is_not_the_removed_one(owner: LocalProvider) -> None:
    other = LocalProvider()
    for _ in range(2):
        box = await owner.create(SandboxSpec(mounts=VOLUME_MOUNTS))
        assert await box.list_dir("/cache") == []
        await box.write_file("/cache/file", b"content", mode=None)
        await box.delete()
        await other.remove_volume("pip")
    await other.aclose()


async def test_the_next_removal_ends_a_killed_one(
    owner: LocalProvider, state: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.write_text("content")
    left = state / "volumes" / f".removed-{'0' * 16}"
    state.mkdir(0o700)
    left.mkdir(parents=True)
    (left / "link").symlink_to(kept)
    (left / "folder").symlink_to(tmp_path)
    (left / "closed").mkdir(0)
    deep = "i=0; while [ $i -lt 1500 ]; do mkdir d && cd -P d || exit 1; i=$((i+1)); done"
    subprocess.run(["sh", "-c", deep], cwd=left, check=True)
    await (await owner.create(SandboxSpec(mounts=VOLUME_MOUNTS))).delete()
    await owner.remove_volume("pip")
    assert list((state / "volumes").iterdir()) == []
    assert kept.read_text() == "content"


@pytest.mark.parametrize("umask", [0o000, 0o027, 0o077], ids=oct)
def test_a_sandbox_its_snapshot_and_its_volume_can_be_entered(umask: int, state: Path) -> None:
    require_local()
    argv = [sys.executable, "-W", "error", "-c", PROGRAMS["any_umask"]]
    done = subprocess.run(argv, umask=umask, capture_output=True, text=True)
    assert done.stdout == "1\n2\n", done.stderr
