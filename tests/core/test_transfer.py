"""Downloads from a hostile sandbox never leave the target folder."""

import os
import tarfile
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Operation, SandboxFileError
from sandboxkit.transfers._archive import DownloadLimits, Transfer, pack, unpack
from tests.strangers.layouts import member, tar


class Sent:
    """A stream that counts what was taken of it."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.taken = 0
        self._pieces = pieces

    async def stream(self) -> AsyncGenerator[bytes, None]:
        for piece in self._pieces:
            self.taken += len(piece)
            yield piece


LIMITS = DownloadLimits(1 << 20, 100)


def receive(
    sent: Sent, target: Path, *, single: bool = False, limits: DownloadLimits = LIMITS
) -> Transfer:
    return Operation(unpack(sent.stream(), os.fspath(target), single=single, limits=limits)).result(
        60
    )


# Any: members of an archive, with or without content.
def download(members: Iterable[Any], target: Path, limits: DownloadLimits = LIMITS) -> Transfer:
    data = tar(members)
    pieces = [data[start : start + 1000] for start in range(0, len(data), 1000)]
    return receive(Sent(pieces), target, limits=limits)


def file(name: str, data: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    return member(name, mode=0o6777), data


def test_files_and_folders_arrive_without_setuid(tmp_path: Path) -> None:
    members = [member("a", tarfile.DIRTYPE, mode=0o6777), file("a/b.txt", b"hello")]
    assert download(members, tmp_path) == Transfer(1, 5, ())
    assert (tmp_path / "a/b.txt").read_bytes() == b"hello"
    assert (tmp_path / "a/b.txt").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("name", ["/abs", "../up", "a/../../up", "a/" * 70 + "..", "../" * 9])
def test_names_outside_the_target_are_refused(tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    with pytest.raises(SandboxFileError, match="leads out"):
        download([file(name)], target)
    assert [path.name for path in tmp_path.rglob("*")] == ["target"]


@pytest.mark.parametrize(
    ("kind", "link"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.SYMTYPE, "."),
        (tarfile.LNKTYPE, "ok"),
        (tarfile.FIFOTYPE, ""),
        (tarfile.CHRTYPE, ""),
    ],
)
def test_links_and_specials_are_skipped_and_named(tmp_path: Path, kind: bytes, link: str) -> None:
    assert download([file("ok"), member("odd", kind, link)], tmp_path).skipped == ("odd",)
    assert [path.name for path in tmp_path.iterdir()] == ["ok"]


def test_a_link_that_was_there_before_is_replaced_and_not_followed(tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    for name in ("way", "f"):
        (target / name).symlink_to(outside / name)
    (outside / "f").write_text("mine")
    (outside / "way").mkdir()
    with pytest.raises(SandboxFileError, match="refused"):
        download([file("way/in")], target)
    assert list((outside / "way").iterdir()) == []
    download([file("f", b"theirs")], target)
    assert (outside / "f").read_text() == "mine"
    assert (target / "f").read_text() == "theirs"


def test_size_and_count_are_capped(tmp_path: Path) -> None:
    members = [file(str(number), b"x" * 3) for number in range(4)]
    for limits, named in ((DownloadLimits(11, 9), "bytes=11"), (DownloadLimits(99, 3), "files=3")):
        with pytest.raises(SandboxFileError, match=f"max_{named}"):
            download(members, tmp_path, limits)
    download(members, tmp_path, DownloadLimits(12, 4))


def test_an_abandoned_packing_ends_without_an_error(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(os.urandom(20_000_000))

    async def first_chunk() -> int:
        packing = pack(str(tmp_path), None)
        size = len(await anext(packing))
        await packing.aclose()
        return size

    assert Operation(first_chunk()).result(30) > 0


def test_a_file_that_cannot_be_packed_raises_one_typed_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    async def everything() -> list[bytes]:
        return [chunk async for chunk in pack(str(tmp_path), None)]

    with pytest.raises(ConfigurationError, match="pipe"):
        Operation(everything()).result(30)
