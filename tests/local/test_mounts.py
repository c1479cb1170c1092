"""Datasets in local sandboxes: whoever starts them, whatever ends them."""

import signal
from pathlib import Path

import pytest

from sandboxkit import Dataset, DatasetNotFoundError, Session
from sandboxkit.datasets import DatasetStore
from sandboxkit.providers.local import LocalProvider
from tests.components import needs_root
from tests.local.conftest import client
from tests.local.test_unprivileged import as_ordinary_user

pytestmark = pytest.mark.anyio
UNUSED = """
print(*await provider.remove_unused_datasets())
await provider.aclose()
"""
STARTED = """
from sandboxkit import Dataset
mounts = {{"/data": Dataset({folder!r}).digest}}
for profile in ("standard", "strict"):
    sandbox_id = await provider.create(SandboxSpec(mounts=mounts, profile=profile, detach={detach}))
    script = "cat /data/file; echo > /data/file || echo; rm -rf /data/file || mount -o remount,bind,rw /data"
    await provider.exec(sandbox_id, Command(("sh", "-c", script)), output)
print(texts["stdout"].decode().split(), texts["stderr"].count(b"Read-only file system"))
print(sandbox_id, flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one file."""
    made = tmp_path / "data"
    made.mkdir()
    (made / "file").write_text("content")
    return made


def removed() -> list[str]:
    """What another process removes as unused."""
    with client(UNUSED) as process:
        return process.communicate(timeout=60)[0].split()


@needs_root("root starts a program as another user")
async def test_an_ordinary_user_mounts_a_dataset(state: Path, folder: Path) -> None:
    state.mkdir()
    folder.rename(state / "data")  # the user sees no other folder of this test
    code = STARTED.format(folder=str(state / "data"), detach=False) + "await provider.aclose()"
    out = await as_ordinary_user(code, state)
    assert out.splitlines()[0] == "['content', 'content'] 4"


async def test_a_dataset_of_a_sandbox_that_outlives_its_owner_is_kept(
    state: Path, folder: Path
) -> None:
    with client(STARTED.format(folder=str(folder), detach=True)) as process:
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
    code = STARTED.format(folder=str(folder), detach=False) + "sys.stdin.read()"
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
