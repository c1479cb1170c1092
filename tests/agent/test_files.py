"""File calls and archives through the agent."""

import io
import os
import stat
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from sandboxkit.errors import SandboxFileError
from sandboxkit.types import FileType
from tests.agent.conftest import Box

pytestmark = pytest.mark.anyio

LIMIT = 1 << 30


async def read(box: Box, path: Path | str, max_bytes: int = LIMIT) -> bytes:
    return await box.provider.read_file(box.id, str(path), max_bytes=max_bytes)


async def write(box: Box, path: Path | str, data: bytes, mode: int | None = None) -> None:
    await box.provider.write_file(box.id, str(path), data, mode=mode)


async def chunks(data: bytes, size: int = 10_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def archive(box: Box, path: Path | str) -> bytes:
    return b"".join([chunk async for chunk in box.provider.get_archive(box.id, str(path))])


@pytest.mark.parametrize("size", [0, 1, 1000, 256 << 10, (256 << 10) + 1, 20_000_000])
async def test_written_files_are_read_back(box: Box, size: int) -> None:
    data = os.urandom(size)
    await write(box, box.workdir / "file", data)
    assert await read(box, box.workdir / "file") == data
    assert os.listdir(box.workdir) == ["file"]


async def test_writing_makes_parents_and_sets_the_mode(box: Box) -> None:
    path = box.workdir / "a" / "b" / "c"
    await write(box, path, b"x", 0o4751)
    assert stat.S_IMODE(path.stat().st_mode) == 0o4751
    await write(box, path, b"y")
    assert stat.S_IMODE(path.stat().st_mode) == 0o4751
    await write(box, box.workdir / "plain", b"x")
    assert stat.S_IMODE((box.workdir / "plain").stat().st_mode) == 0o644


async def test_writing_through_a_link_writes_its_target(box: Box) -> None:
    (box.workdir / "target").write_bytes(b"old")
    (box.workdir / "link").symlink_to("target")
    await write(box, box.workdir / "link", b"new")
    assert (box.workdir / "link").is_symlink()
    assert (box.workdir / "target").read_bytes() == b"new"


async def test_a_cancelled_write_keeps_the_old_file(box: Box) -> None:
    path = box.workdir / "file"
    await write(box, path, b"old")
    with anyio.move_on_after(0.01):
        await write(box, path, bytes(200_000_000))
    assert path.read_bytes() in (b"old", bytes(200_000_000))
    assert os.listdir(box.workdir) == ["file"]


async def test_only_regular_files_up_to_the_limit_are_read(box: Box) -> None:
    await box.sh("mkfifo pipe; mkdir folder; printf 12345 > five")
    for name in ("pipe", "folder"):
        with anyio.fail_after(60), pytest.raises(SandboxFileError):
            await read(box, box.workdir / name)
        with anyio.fail_after(60), pytest.raises(SandboxFileError):
            await write(box, box.workdir / name, b"x")
    with pytest.raises(SandboxFileError):
        await read(box, "/dev/zero")
    assert await read(box, box.workdir / "five", 5) == b"12345"
    with pytest.raises(SandboxFileError, match="limit"):
        await read(box, box.workdir / "five", 4)
    assert (await read(box, "/proc/meminfo")).startswith(b"MemTotal"), "its size is zero"


@pytest.mark.parametrize("name", ["1/mem", "self/environ", "1/task/1/maps", "thread-self/mem"])
async def test_the_agents_own_proc_entries_are_refused(box: Box, name: str) -> None:
    with pytest.raises(SandboxFileError):
        await read(box, f"/proc/{name}")
    (box.workdir / "sneaky").symlink_to(f"/proc/{name}")
    with pytest.raises(SandboxFileError):
        await read(box, box.workdir / "sneaky")
    with pytest.raises(SandboxFileError):
        await write(box, box.workdir / "sneaky", b"x")


async def test_stat_and_list_do_not_follow_links(box: Box) -> None:
    await box.sh("mkdir -m 750 d; printf abc > f; chmod 604 f; ln -s nowhere l; mkfifo p")
    entries = await box.provider.list_dir(box.id, str(box.workdir))
    found = [(info.path.rpartition("/")[2], info.type, oct(info.mode)) for info in entries]
    assert found[:2] == [("d", FileType.DIRECTORY, "0o750"), ("f", FileType.FILE, "0o604")]
    assert [kind for _, kind, _ in found[2:]] == [FileType.SYMLINK, FileType.OTHER]
    info = await box.provider.stat(box.id, str(box.workdir / "f"))
    assert info == entries[1]
    assert info.size == 3
    assert abs(info.mtime - (box.workdir / "f").stat().st_mtime) < 1e-6


async def test_a_thousand_files_with_modes_and_links_both_ways(box: Box) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in range(1000):
            head = tarfile.TarInfo(f"d{number % 10}/file{number}")
            head.size, head.mode, head.mtime = 100, 0o600 | number % 64, 1_600_000_000 + number
            tar.addfile(head, io.BytesIO(bytes([number % 256]) * 100))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "d1/file1"
        tar.addfile(link)
        hard = tarfile.TarInfo("hard")
        hard.type, hard.linkname = tarfile.LNKTYPE, "d1/file1"
        tar.addfile(hard)
        folder = tarfile.TarInfo("readonly")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o555
        tar.addfile(folder)
        inside = tarfile.TarInfo("readonly/file")
        tar.addfile(inside)
    target = box.workdir / "new" / "tree"
    await box.provider.put_archive(box.id, str(target), chunks(buffer.getvalue()))
    with tarfile.open(fileobj=io.BytesIO(await archive(box, target))) as tar:
        members = {member.name: member for member in tar}
        for number in range(1000):
            member = members[f"d{number % 10}/file{number}"]
            assert (member.mode, member.mtime) == (0o600 | number % 64, 1_600_000_000 + number)
            extracted = tar.extractfile(member)
            assert extracted is not None
            assert extracted.read() == bytes([number % 256]) * 100
    assert members["link"].linkname == "d1/file1"
    assert members["readonly"].mode == 0o555
    assert len(members) == 1000 + 10 + 4


async def test_an_abandoned_archive_stops_the_agents_work(box: Box) -> None:
    await write(box, box.workdir / "big", bytes(50_000_000))
    stream = box.provider.get_archive(box.id, str(box.workdir))
    async for _ in stream:
        break
    await stream.aclose()
    assert (await box.exec("true")).status == 0


@pytest.mark.parametrize("name", ["../out", "a/../../out"])
async def test_archive_members_outside_the_target_are_refused(box: Box, name: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(SandboxFileError, match="leads out"):
        await box.provider.put_archive(box.id, str(box.workdir / "in"), chunks(buffer.getvalue()))
    assert not (box.workdir / "out").exists()


async def test_a_broken_archive_is_a_file_error(box: Box) -> None:
    with pytest.raises(SandboxFileError):
        await box.provider.put_archive(box.id, str(box.workdir), chunks(b"not a tar" * 1000))


async def test_file_calls_act_as_the_sandboxs_user(user_box: Box) -> None:
    box = user_box
    secret = box.provider.folder / "secret"
    secret.write_bytes(b"secret")
    secret.chmod(0o600)
    for path in (secret, "/etc/shadow"):
        with pytest.raises(SandboxFileError):
            await read(box, path)
    with pytest.raises(SandboxFileError):
        await write(box, "/etc/sandboxkit-test", b"x")
    await write(box, box.workdir / "mine", b"x")
    owner = (await box.sh("stat -c %U:%G mine; id -gn")).stdout.decode().split()
    assert owner[0] == f"nobody:{owner[1]}"
    (box.workdir / "root-only").mkdir(mode=0o700)
    with pytest.raises(SandboxFileError):
        await box.provider.list_dir(box.id, str(box.workdir / "root-only"))


async def test_names_that_are_not_utf8_survive(box: Box) -> None:
    await box.sh("printf x > $(printf 'odd\\377name')")
    (info,) = await box.provider.list_dir(box.id, str(box.workdir))
    assert await read(box, info.path) == b"x"
