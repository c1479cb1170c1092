"""Datasets and volumes in local sandboxes: whoever starts them, whatever ends them."""

import signal
import subprocess
from pathlib import Path

import pytest

from sandboxkit import Dataset, DatasetNotFoundError, Session, VolumeError
from sandboxkit.datasets import DatasetStore
from sandboxkit.providers.local import LocalProvider
from sandboxkit.types import SandboxSpec
from tests.components import needs_root
from tests.local.conftest import PROGRAMS, client
from tests.local.test_unprivileged import as_ordinary_user

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one file."""
    made = tmp_path / "data"
    made.mkdir()
    (made / "file").write_text("content")
    return made


def removed() -> list[str]:
    """What another process removes as unused."""
    with client(PROGRAMS["unused"]) as process:
        return process.communicate(timeout=60)[0].split()


@needs_root("root starts a program as another user")
async def test_an_ordinary_user_mounts_a_dataset(state: Path, folder: Path) -> None:
    state.mkdir()
    folder.rename(state / "data")  # the user sees no other folder of this test
    code = (
        PROGRAMS["with_dataset"].format(folder=str(state / "data"), detach=False)
        + "await provider.aclose()"
    )
    out = await as_ordinary_user(code, state)
    assert out.splitlines()[0] == "['content', 'content'] 4"


async def test_a_dataset_of_a_sandbox_that_outlives_its_owner_is_kept(
    state: Path, folder: Path
) -> None:
    with client(PROGRAMS["with_dataset"].format(folder=str(folder), detach=True)) as process:
        _, sandbox_id = process.communicate(timeout=60)[0].splitlines()
    assert removed() == []
    provider = LocalProvider()
    try:
        assert await provider.read_file(sandbox_id, "/data/file", max_bytes=100) == b"content"
    finally:
        async for info in provider.list({}):
            await provider.delete(info.id)
        await provider.aclose()
    assert len(removed()) == 1


async def test_a_dataset_of_a_killed_owner_is_removed(state: Path, folder: Path) -> None:
    code = PROGRAMS["with_dataset"].format(folder=str(folder), detach=False) + "sys.stdin.read()"
    with client(code) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert removed() == []
        process.send_signal(signal.SIGKILL)
        process.wait(60)
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


def test_a_reset_keeps_a_mount_and_proves_the_rest(folder: Path) -> None:
    mounts = {"/data": Dataset(folder), "/workspace/given": Dataset(folder)}
    with Session(
        "local", mounts=mounts, profile="strict", pool=1, max_concurrency=1, reuse="reset"
    ) as session:
        for _ in range(3):
            script = "cat /data/file given/file; ls; touch left /tmp/left; rm -rf /workspace"
            result = session.run(["sh", "-c", script]).result(60)
            assert result.stdout == "contentcontentgiven\n"
        stats = session.pool_stats()
        assert (stats.reset, stats.made, stats.thrown_away) == (stats.reset, 1, {})
        assert stats.reset >= 2


VOLUME_MOUNTS = {"/cache": "volume:pip"}
OUTCOME = [
    "[b'1', b'/cache/file', b'2', b'/cache/file', b'3', b'/cache/file'] ['pip']",
    "b'' []",
]


async def test_sandboxes_of_every_user_own_what_is_in_a_volume(state: Path) -> None:
    with client(PROGRAMS["shared"]) as process:
        assert process.communicate(timeout=60)[0].splitlines() == OUTCOME


@needs_root("root starts a program as another user")
async def test_an_ordinary_users_sandboxes_own_what_is_in_a_volume(state: Path) -> None:
    assert (await as_ordinary_user(PROGRAMS["shared"], state)).splitlines() == OUTCOME


async def test_a_volume_of_a_killed_owner_stays_and_can_be_removed(state: Path) -> None:
    with client(PROGRAMS["with_volume"].format(detach=False) + "sys.stdin.read()") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    provider = LocalProvider()
    try:
        sandbox_id = await provider.create(SandboxSpec(mounts=VOLUME_MOUNTS))
        assert await provider.read_file(sandbox_id, "/cache/file", max_bytes=9) == b"content"
        await provider.delete(sandbox_id)
        await provider.remove_volume("pip")
        assert await provider.list_volumes() == []
    finally:
        await provider.aclose()


async def test_a_volume_of_a_sandbox_that_outlives_its_owner_is_in_use(state: Path) -> None:
    with client(PROGRAMS["with_volume"].format(detach=True)) as process:
        sandbox_id = process.communicate(timeout=60)[0].strip()
    provider = LocalProvider()
    try:
        with pytest.raises(VolumeError, match="'pip' is in use"):
            await provider.remove_volume("pip")
        await provider.delete(sandbox_id)
        await provider.remove_volume("pip")
    finally:
        await provider.aclose()


async def test_a_volume_that_is_made_again_is_not_the_removed_one(state: Path) -> None:
    provider, other = LocalProvider(), LocalProvider()
    try:
        for _ in range(2):
            sandbox_id = await provider.create(SandboxSpec(mounts=VOLUME_MOUNTS))
            assert await provider.list_dir(sandbox_id, "/cache") == []
            await provider.write_file(sandbox_id, "/cache/file", b"content", mode=None)
            await provider.delete(sandbox_id)
            await other.remove_volume("pip")
    finally:
        await provider.aclose()
        await other.aclose()


async def test_what_a_killed_removal_left_goes_with_the_next_one(
    state: Path, tmp_path: Path
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
    provider = LocalProvider()
    try:
        sandbox_id = await provider.create(SandboxSpec(mounts=VOLUME_MOUNTS))
        await provider.delete(sandbox_id)
        await provider.remove_volume("pip")
    finally:
        await provider.aclose()
    assert list((state / "volumes").iterdir()) == []
    assert kept.read_text() == "content"
