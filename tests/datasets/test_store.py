"""Snapshots of folders: what they keep, when they are stored, and when they are removed."""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sandboxkit import CapacityError, ConfigurationError, Dataset, DatasetNotFoundError
from sandboxkit.datasets import DatasetStore, _snapshot

PROGRAMS = tomllib.loads((Path(__file__).parent / "programs.toml").read_text())
UNKNOWN = "sha256:" + "0" * 64


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(folder))
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with two files, one of them executable, a link and a folder."""
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("one")
    (folder / "sub" / "run").write_text("#!/bin/sh\n")
    (folder / "sub" / "run").chmod(0o4700)
    (folder / "sub" / "link").symlink_to("../a.txt")
    return folder


def stored(dataset: Dataset) -> Path:
    return DatasetStore().use(dataset.digest)


def elsewhere(code: str, *arguments: object) -> str:
    program = f"import sys; from sandboxkit import *; from sandboxkit.datasets import *\n{code}"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def removed(*in_use: str, dry_run: bool = False) -> list[str]:
    """What a process that uses no dataset removes."""
    code = f"print(*DatasetStore().remove_unused(lambda: sys.argv[1:], dry_run={dry_run}))"
    return elsewhere(code, *in_use).split()


def forgotten(source: Path) -> str:
    """The digest of a dataset that is stored, and that no process uses."""
    return elsewhere("print(Dataset(sys.argv[1]).digest)", source).strip()


def test_a_snapshot_has_the_content_of_the_folder_for_all_and_no_setuid_bit(source: Path) -> None:
    (source / "a.txt").chmod(0o600)
    copy = stored(Dataset(source))
    modes = {str(p.relative_to(copy)): stat.S_IMODE(p.stat().st_mode) for p in copy.rglob("*")}
    assert modes == {"a.txt": 0o644, "sub": 0o755, "sub/link": 0o644, "sub/run": 0o755}
    assert (copy / "a.txt").read_text() == "one"
    assert (copy / "sub" / "link").readlink() == Path("../a.txt")
    assert {path.lstat().st_mtime for path in (copy, *copy.rglob("*"))} == {315_532_800}


def test_a_later_change_of_the_folder_is_not_seen(source: Path) -> None:
    dataset = Dataset(source)
    (source / "a.txt").write_text("two")
    assert (stored(dataset) / "a.txt").read_text() == "one"
    assert Dataset(source) != dataset
    (source / "a.txt").write_text("one")
    assert Dataset(source) == dataset


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a.txt").rename(folder / "b.txt"),
        lambda folder: (folder / "a.txt").chmod(0o700),
        lambda folder: (folder / "empty").mkdir(),
        lambda folder: (folder / "other").symlink_to("a.txt"),
        lambda folder: (folder / os.fsdecode(b"not-utf8-\xff")).touch(),
    ],
    ids=["name", "execute bit", "folder", "link", "name that is not UTF-8"],
)
def test_names_modes_and_links_are_part_of_the_digest(source: Path, change: object) -> None:
    before = Dataset(source)
    change(source)  # type: ignore[operator]
    after = Dataset(source)
    assert after != before
    assert _snapshot.read(str(stored(after))) == after.digest


def test_a_copy_is_the_same_and_stored_once(source: Path, tmp_path: Path, state: Path) -> None:
    subprocess.run(["cp", "-r", source, tmp_path / "copy"], check=True)
    dataset = Dataset(source)
    inode = stored(dataset).stat().st_ino
    assert Dataset(tmp_path / "copy") == dataset
    assert forgotten(source) == dataset.digest
    assert stored(dataset).stat().st_ino == inode
    assert os.listdir(state / "datasets") == [dataset.digest[7:]]


def test_a_digest_names_what_is_stored(source: Path) -> None:
    dataset = Dataset(source)
    assert Dataset(digest=dataset.digest) == dataset
    with pytest.raises(DatasetNotFoundError, match=rf"{UNKNOWN}.*Dataset\('folder'\)"):
        Dataset(digest=UNKNOWN)
    for given in ({}, {"path": source, "digest": UNKNOWN}):
        with pytest.raises(ConfigurationError, match="give either a folder or the digest"):
            Dataset(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("digest", ["", "sha256:12", "0" * 64, "sha256:" + "../" * 21 + "a"])
def test_text_that_is_no_digest_is_refused(digest: str) -> None:
    with pytest.raises(ConfigurationError, match="digest="):
        Dataset(digest=digest)


def test_a_path_that_is_no_folder_or_has_the_store_is_refused(source: Path, tmp_path: Path) -> None:
    Dataset(source)
    for path, why in (
        (source / "missing", "missing' does not exist; give the path of a folder"),
        (source / "a.txt", "a.txt' is no folder; give the path of a folder"),
        (tmp_path, "contains the store"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            Dataset(path)


def test_a_special_file_and_a_link_that_leaves_the_folder_are_refused(source: Path) -> None:
    for target in ("/etc/passwd", "../other", "sub/../../other"):
        (source / "leaving").symlink_to(target)
        with pytest.raises(ConfigurationError, match=f"leaving' is a link to '{target}'.*replace"):
            Dataset(source)
        (source / "leaving").unlink()
    os.mkfifo(source / "fifo")
    with pytest.raises(ConfigurationError, match=r"fifo' is no file, folder or link.*remove it"):
        Dataset(source)
    (source / "fifo").unlink()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(source / "socket"))
        with pytest.raises(ConfigurationError, match="socket' is no file, folder or link"):
            Dataset(source)


def test_full_disk_has_a_remedy(source: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = _snapshot.read

    def full(path: str, copy: Path | None = None) -> str:
        digest = read(path, copy)
        if copy is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return digest

    monkeypatch.setattr(_snapshot, "read", full)
    with pytest.raises(CapacityError, match="SANDBOXKIT_STATE_DIR"):
        Dataset(source)
    assert os.listdir(state / "datasets") == []


def test_a_dataset_that_nothing_uses_is_removed(source: Path, state: Path) -> None:
    digest = forgotten(source)
    assert removed(dry_run=True) == [digest]
    assert removed(digest) == []
    assert removed() == [digest]
    assert os.listdir(state / "datasets") == []
    with pytest.raises(DatasetNotFoundError):
        Dataset(digest=digest)


def test_a_dataset_that_a_living_process_uses_is_kept(source: Path) -> None:
    dataset = Dataset(source)
    assert removed() == []
    assert DatasetStore().remove_unused(lambda: ()) == []
    assert stored(dataset).is_dir()


def test_a_fork_of_a_process_holds_nothing_for_it(source: Path) -> None:
    command = [sys.executable, "-c", PROGRAMS["fork"], str(source)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        digest = process.stdout.readline().strip()
        assert process.wait(60) == 0
        assert removed() == [digest]  # the child lives until its stdin is closed


def test_the_next_process_removes_what_a_killed_one_has_copied(source: Path, state: Path) -> None:
    command = [sys.executable, "-c", PROGRAMS["killed"], source]
    for _ in range(2):
        done = subprocess.run(command, timeout=60)
        assert done.returncode == -signal.SIGKILL
        assert [*state.glob("datasets/.temporary-*/copy")]
    assert removed() == []
    assert os.listdir(state / "datasets") == []
    subprocess.run(command, timeout=60)
    assert (stored(Dataset(source)) / "a.txt").read_text() == "one"
    assert not [*state.glob("datasets/.*")]


def test_processes_that_store_one_dataset_at_once_store_it_once(source: Path, state: Path) -> None:
    (source / "large").write_bytes(os.urandom(8 << 20))
    code = "import sys; from sandboxkit import Dataset; print(Dataset(sys.argv[1]).digest)"
    command = [sys.executable, "-c", code, str(source)]
    with_pipes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    digests = {process.communicate(timeout=120)[0] for process in with_pipes}
    assert digests == {f"{Dataset(source).digest}\n"}
    assert len(os.listdir(state / "datasets")) == 1
