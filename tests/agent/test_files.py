"""File calls and archives through the agent."""

import io
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
    return await box.inner.read_file(str(path), max_bytes=max_bytes)


async def write(box: Box, path: Path | str, data: bytes, mode: int | None = None) -> None:
    await box.inner.write_file(str(path), data, mode=mode)


async def chunks(data: bytes, size: int = 10_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def test_writing_through_a_link_writes_its_target(box: Box) -> None:
    (box.workdir / "target").write_bytes(b"old")
    (box.workdir / "link").symlink_to("target")
    await write(box, box.workdir / "link", b"new")
    assert (box.workdir / "link").is_symlink()
    assert (box.workdir / "target").read_bytes() == b"new"


async def test_a_pipe_is_refused_and_a_file_of_the_kernel_is_read(box: Box) -> None:
    await box.sh("mkfifo pipe")
    for call in (read(box, box.workdir / "pipe"), write(box, box.workdir / "pipe", b"x")):
        with anyio.fail_after(60), pytest.raises(SandboxFileError):
            await call
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


async def test_stat_and_list_tell_the_same(box: Box) -> None:
    await box.sh("mkdir -m 1750 d; printf abc > f; ln -s nowhere l; mkfifo p")
    entries = await box.inner.list_dir(str(box.workdir))
    kinds = [FileType.DIRECTORY, FileType.FILE, FileType.SYMLINK, FileType.OTHER]
    assert [info.type for info in entries] == kinds
    assert entries[0].mode == 0o1750
    info = await box.inner.stat(str(box.workdir / "f"))
    assert info == entries[1]
    assert abs(info.mtime - (box.workdir / "f").stat().st_mtime) < 1e-6


async def test_an_archive_keeps_modes_times_and_links_both_ways(box: Box) -> None:
    kinds = {"d": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number, name in enumerate(("d", "d/file", "link", "hard")):
            head = tarfile.TarInfo(name)
            head.type, head.linkname = kinds.get(name, tarfile.REGTYPE), "d/file"
            head.mode, head.mtime = 0o555 - number, 1_600_000_000 + number
            head.size = 100 if name == "d/file" else 0
            tar.addfile(head, io.BytesIO(b"x" * head.size))
    target = box.workdir / "new" / "tree"
    await box.inner.put_archive(str(target), chunks(buffer.getvalue()))
    kept = [chunk async for chunk in box.inner.get_archive(str(target))]
    with tarfile.open(fileobj=io.BytesIO(b"".join(kept))) as tar:
        members = {member.name.removeprefix("./"): member for member in tar}
        assert (members["d"].mode, members["link"].linkname) == (0o555, "d/file")
        assert (members["d/file"].mode, members["d/file"].mtime) == (0o554, 1_600_000_001)
        assert (extracted := tar.extractfile(members["d/file"])) is not None
        assert extracted.read() == b"x" * 100
    assert (target / "hard").stat().st_nlink == 2


async def test_an_abandoned_archive_stops_the_agents_work(box: Box) -> None:
    await write(box, box.workdir / "big", bytes(50_000_000))
    stream = box.inner.get_archive(str(box.workdir))
    async for _ in stream:
        break
    await stream.aclose()
    assert (await box.exec("true")).status == 0


@pytest.mark.parametrize("name", ["../out", "a/../../out", ""])
async def test_a_broken_archive_and_members_outside_are_refused(box: Box, name: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    data = buffer.getvalue() if name else b"not a tar" * 1000
    with pytest.raises(SandboxFileError, match="leads out" if name else None):
        await box.inner.put_archive(str(box.workdir / "in"), chunks(data))
    assert not (box.workdir / "out").exists()


async def test_file_calls_act_as_the_sandboxs_user(user_box: Box) -> None:
    box = user_box
    secret = box.inner.backend.folder / "secret"
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
        await box.inner.list_dir(str(box.workdir / "root-only"))


async def test_names_that_are_not_utf8_survive(box: Box) -> None:
    await box.sh("printf x > $(printf 'odd\\377name')")
    (info,) = await box.inner.list_dir(str(box.workdir))
    assert await read(box, info.path) == b"x"
