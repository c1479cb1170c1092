"""The agent's programs `keep`, `restore`, `stage` and `unstage`, on folders of this machine."""

import gzip
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from sandboxkit.providers._agent import binary
from tests.components import lack, needs_mounts, needs_root, reason

pytestmark = needs_root("files of several users need root")

_NOBODY = 65534
_FILES = 64
"""How many files the programs may have open."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can reach."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def _run(*argv: str, user: int = 0, stdin: bytes = b"") -> bytes:
    """Return the output of a program, which must succeed; its stdin stays open until it has ended."""
    limited = ("prlimit", f"--nofile={_FILES}:{_FILES}", str(binary.path()), *argv)
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            limited, stdin=subprocess.PIPE, stdout=said, stderr=errors, user=user, group=user
        ) as process:
            assert process.stdin is not None
            process.stdin.write(stdin)
            process.stdin.flush()
            code = process.wait(300)
        said.seek(0)
        errors.seek(0)
        assert code == 0, (errors.read(), said.read()[-200:])
        return said.read()


def _files(archive: bytes) -> list[str]:
    """Return the paths of all files in an archive, each with its last folder alone."""
    end = archive.rindex(b"SBXKEPT")
    data = gzip.decompress(archive[:end])
    assert archive[end:] == b"SBXKEPT %016x\n" % len(data)
    with tarfile.open(fileobj=BytesIO(data)) as tar:
        found = [Path("/", each.name) for each in tar if each.isfile()]
    return sorted(f"{path.parent.name}/{path.name}" for path in found)


@pytest.mark.timeout(900)  # on a busy machine: these are many files
def test_long_lists_of_names_odd_attributes_and_many_hard_links_are_restored(folder: Path) -> None:
    place = folder / "place"
    many, closed = place / "many", place / "closed"
    for number in range(4200):
        (many / f"{number:04}{'n' * 246}").mkdir(parents=True)  # more than 1 MiB of names
    closed.mkdir()
    first = closed / "first"
    first.write_text("linked")
    os.setxattr(first, "user.a=b%3D%", b"=\0%")
    for number in range(20):
        (place / f"of-{number}").mkdir()
        for each in range(20):
            os.link(first, place / f"of-{number}" / f"{each}")
    for number in range(3 * _FILES):
        (closed / f"file-{number}").touch()
        os.link(closed / f"file-{number}", place / f"link-{number}")
    os.chown(first, _NOBODY, _NOBODY)
    closed.chmod(0)
    archive = _run("keep", "0", str(place))
    shutil.rmtree(place)
    place.mkdir()
    assert _run("restore", str(folder), str(place), stdin=archive) == b"restored\n"
    assert len(os.listdir(many)) == 4200
    assert first.stat().st_nlink == 401
    assert (first.stat().st_uid, closed.stat().st_mode & 0o777) == (_NOBODY, 0)
    assert os.getxattr(place / "of-7/7", "user.a=b%3D%") == b"=\0%"
    assert all((place / f"link-{each}").stat().st_nlink == 2 for each in range(3 * _FILES))


@needs_mounts("a file system with room for attributes")
def test_more_attributes_than_a_header_has_room_for_are_restored(folder: Path) -> None:
    place = folder / "place"
    place.mkdir()
    size = "size=64m,mode=0755"  # other file systems have less room for attributes
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "attributes", place], check=True)
    try:
        file = place / "file"
        file.write_text("content")
        try:
            os.setxattr(file, "user.0", b"")
        except OSError:
            lack(reason("Linux 6.6", "a newer kernel", "tmpfs has no attributes of users"))
        given = {f"user.{number}": os.urandom(4000) for number in range(400)}
        for name, value in given.items():
            os.setxattr(file, name, value)
        archive = _run("keep", "0", str(place))
        file.unlink()
        assert _run("restore", str(folder), str(place), stdin=archive) == b"restored\n"
        assert file.read_text() == "content"
        assert {name: os.getxattr(file, name) for name in os.listxattr(file)} == given
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_staged_archive_is_restored_but_cannot_be_read(folder: Path) -> None:
    place, archive, staged = folder / "place", folder / "archive", folder / "staged"
    key, content = "0123456789abcdef" * 4, os.urandom(3 << 20)
    place.mkdir()
    (place / "file").write_bytes(content)
    archive.write_bytes(_run("keep", "0", str(place)))
    shutil.rmtree(place)
    place.mkdir()
    assert _run("stage", str(archive), str(staged), key) == b""
    assert staged.stat().st_size == archive.stat().st_size
    assert content[1 << 20 :][:64] not in staged.read_bytes()
    unstage = ("unstage", str(staged), str(folder), str(place))
    assert _run(*unstage, stdin=f"{key}\n".encode()) == b"restored\n"
    assert (place / "file").read_bytes() == content
    other = f"{key[::-1]}\n".encode()
    done = subprocess.run(
        [str(binary.path()), *unstage], input=other, capture_output=True, check=False
    )
    assert done.stdout.startswith(b"sandbox agent: the archive: ")


@pytest.mark.parametrize("user", [0, _NOBODY])
def test_a_keep_that_is_killed_leaves_the_modes_as_they_were(folder: Path, user: int) -> None:
    closed = folder / "closed"
    closed.mkdir()
    for name in ("a", "b"):
        (closed / name).write_bytes(os.urandom(1 << 20))  # more than a pipe holds
        (closed / name).chmod(0)
        os.chown(closed / name, _NOBODY, _NOBODY)
    closed.chmod(0)
    os.chown(closed, _NOBODY, _NOBODY)
    argv = (str(binary.path()), "keep", "0", str(folder))
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=user, group=user
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"\x1f"
        process.kill()
    for path in (closed, closed / "a", closed / "b"):
        assert path.stat().st_mode & 0o777 == 0


def test_an_ordinary_user_keeps_only_files_that_it_can_have_changed(folder: Path) -> None:
    # All are as new as those of an image that was pulled just now.
    root = {"image": 0o755, "shared": 0o1777, "closed": 0o700, "image/writable": 0o666}
    root["image/secret"] = 0o600
    for name, mode in {**root, "own": 0o700, "image/own": 0o400}.items():
        path = folder / name
        path.touch() if "/" in name else path.mkdir()
        if "/" not in name:
            (path / "file").write_text(name)
        path.chmod(mode)
        if name not in root:
            os.chown(path, _NOBODY, _NOBODY)
    kept = _files(_run("keep", "0", str(folder), user=_NOBODY))
    assert kept == ["image/own", "image/writable", "own/file", "shared/file"]
