"""Volumes of local sandboxes: whose files they hold, whatever ends the sandboxes that mount them."""

import signal
import subprocess
from pathlib import Path

import pytest

from sandboxkit import VolumeError
from sandboxkit.providers.local import LocalProvider
from sandboxkit.types import SandboxSpec
from tests.components import needs_root
from tests.local.conftest import client
from tests.local.test_unprivileged import as_ordinary_user

pytestmark = pytest.mark.anyio
MOUNTS = {"/cache": "volume:pip"}
STARTED = """
sandbox_id = await provider.create(SandboxSpec(mounts={{"/cache": "volume:pip"}}, detach={detach}))
await provider.write_file(sandbox_id, "/cache/file", b"content", mode=None)
print(sandbox_id, flush=True)
"""
SHARED = """
for profile, user in (("standard", None), ("strict", None), ("standard", "root")):
    spec = SandboxSpec(mounts={"/cache": "volume:pip"}, profile=profile, user=user)
    sandbox_id = await provider.create(spec)
    script = "umask 077; echo line >> /cache/file; mkdir -m 700 -p /cache/a; mv /cache/a /cache/b; mv /cache/b /cache/a"
    await provider.exec(sandbox_id, Command(("sh", "-ec", script)), output)
    await provider.exec(sandbox_id, Command(("wc", "-l", "/cache/file")), output)
    await provider.delete(sandbox_id)
print(texts["stdout"].split(), await provider.list_volumes())
await provider.remove_volume("pip")
print(texts["stderr"], await provider.list_volumes())
await provider.aclose()
"""
OUTCOME = [
    "[b'1', b'/cache/file', b'2', b'/cache/file', b'3', b'/cache/file'] ['pip']",
    "b'' []",
]


async def test_sandboxes_of_every_user_own_what_is_in_a_volume(state: Path) -> None:
    with client(SHARED) as process:
        assert process.communicate(timeout=60)[0].splitlines() == OUTCOME


@needs_root("root starts a program as another user")
async def test_an_ordinary_users_sandboxes_own_what_is_in_a_volume(state: Path) -> None:
    assert (await as_ordinary_user(SHARED, state)).splitlines() == OUTCOME


async def test_a_volume_of_a_killed_owner_stays_and_can_be_removed(state: Path) -> None:
    with client(STARTED.format(detach=False) + "sys.stdin.read()") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    provider = LocalProvider()
    try:
        sandbox_id = await provider.create(SandboxSpec(mounts=MOUNTS))
        assert await provider.read_file(sandbox_id, "/cache/file", max_bytes=9) == b"content"
        await provider.delete(sandbox_id)
        await provider.remove_volume("pip")
        assert await provider.list_volumes() == []
    finally:
        await provider.aclose()


async def test_a_volume_of_a_sandbox_that_outlives_its_owner_is_in_use(state: Path) -> None:
    with client(STARTED.format(detach=True)) as process:
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
            sandbox_id = await provider.create(SandboxSpec(mounts=MOUNTS))
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
        sandbox_id = await provider.create(SandboxSpec(mounts=MOUNTS))
        await provider.delete(sandbox_id)
        await provider.remove_volume("pip")
    finally:
        await provider.aclose()
    assert list((state / "volumes").iterdir()) == []
    assert kept.read_text() == "content"
