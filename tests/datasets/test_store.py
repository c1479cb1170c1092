"""Snapshots of folders: what they keep, when they are stored, and when they are removed."""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxkit import CapacityError, ConfigurationError, Dataset, DatasetNotFoundError
from sandboxkit.datasets import DatasetStore, _snapshot

UNKNOWN = "sha256:" + "0" * 64


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of the test's own."""
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
    """What a program in another process prints."""
    program = (
        "import sys\nfrom sandboxkit import Dataset\nfrom sandboxkit.datasets import *\n" + code
    )
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def removed(*in_use: str, dry_run: bool = False) -> list[str]:
    """What a process that uses no dataset removes."""
    code = (
        "print(*DatasetStore().remove_unused(lambda: sys.argv[2:], dry_run=sys.argv[1] == 'True'))"
    )
    return elsewhere(code, dry_run, *in_use).split()


def forgotten(source: Path) -> str:
    """The digest of a dataset that is stored, and that no process uses."""
    return elsewhere("print(Dataset(sys.argv[1]).digest)", source).strip()


def test_a_snapshot_has_the_content_of_the_folder(source: Path) -> None:
    copy = stored(Dataset(source))
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*")) == [
        "a.txt",
        "sub",
        "sub/link",
        "sub/run",
    ]
    assert (copy / "a.txt").read_text() == "one"
    assert (copy / "sub" / "link").readlink() == Path("../a.txt")


def test_a_snapshot_can_be_read_by_all_and_has_no_setuid_bit(source: Path) -> None:
    (source / "a.txt").chmod(0o600)
    copy = stored(Dataset(source))
    modes = {
        path: stat.S_IMODE((copy / path).stat().st_mode) for path in ("a.txt", "sub", "sub/run")
    }
    assert modes == {"a.txt": 0o644, "sub": 0o755, "sub/run": 0o755}
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


def test_a_copy_of_a_folder_has_the_same_digest_and_is_stored_once(
    source: Path, tmp_path: Path, state: Path
) -> None:
    subprocess.run(["cp", "-r", source, tmp_path / "copy"], check=True)
    dataset = Dataset(source)
    inode = stored(dataset).stat().st_ino
    assert Dataset(tmp_path / "copy") == dataset
    assert forgotten(source) == dataset.digest
    assert stored(dataset).stat().st_ino == inode
    assert sorted(os.listdir(state / "datasets")) == sorted([dataset.digest[7:], "lock"])


def test_a_digest_names_what_is_stored(source: Path) -> None:
    dataset = Dataset(source)
    assert Dataset(digest=dataset.digest) == dataset


def test_an_unknown_digest_is_refused_with_the_remedy() -> None:
    with pytest.raises(DatasetNotFoundError, match=rf"{UNKNOWN}.*Dataset\('folder'\)"):
        Dataset(digest=UNKNOWN)


@pytest.mark.parametrize("digest", ["", "sha256:12", "0" * 64, "sha256:" + "../" * 21 + "a"])
def test_text_that_is_no_digest_is_refused(digest: str) -> None:
    with pytest.raises(ConfigurationError, match="digest="):
        Dataset(digest=digest)


def test_either_a_folder_or_a_digest_is_given(source: Path) -> None:
    for given in ({}, {"path": source, "digest": UNKNOWN}):
        with pytest.raises(ConfigurationError, match="give either a folder or the digest"):
            Dataset(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "why"), [("missing", "does not exist"), ("a.txt", "is no folder")]
)
def test_a_path_that_is_no_folder_is_refused(source: Path, name: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}' {why}; give the path of a folder"):
        Dataset(source / name)


def test_the_folder_of_the_store_is_refused(source: Path, tmp_path: Path) -> None:
    Dataset(source)
    with pytest.raises(ConfigurationError, match="contains the store"):
        Dataset(tmp_path)


@pytest.mark.parametrize("target", ["/etc/passwd", "../other", "sub/../../other"])
def test_a_link_that_leaves_the_folder_is_refused(source: Path, target: str) -> None:
    (source / "leaving").symlink_to(target)
    with pytest.raises(ConfigurationError, match=f"leaving' is a link to '{target}'.*replace it"):
        Dataset(source)


def test_a_special_file_is_refused(source: Path) -> None:
    os.mkfifo(source / "fifo")
    with pytest.raises(ConfigurationError, match=r"fifo' is no file, folder or link.*remove it"):
        Dataset(source)
    (source / "fifo").unlink()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(source / "socket"))
        with pytest.raises(ConfigurationError, match="socket' is no file, folder or link"):
            Dataset(source)


def test_a_full_disk_is_an_error_with_the_remedy(
    source: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = _snapshot.read

    def full(path: str, copy: Path | None = None) -> str:
        digest = read(path, copy)
        if copy is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return digest

    monkeypatch.setattr(_snapshot, "read", full)
    with pytest.raises(CapacityError, match="SANDBOXKIT_STATE_DIR"):
        Dataset(source)
    assert os.listdir(state / "datasets") == ["lock"]


def test_a_dataset_that_nothing_uses_is_removed(source: Path, state: Path) -> None:
    digest = forgotten(source)
    assert removed(dry_run=True) == [digest]
    assert removed(digest) == []
    assert removed() == [digest]
    assert os.listdir(state / "datasets") == ["lock"]
    with pytest.raises(DatasetNotFoundError):
        Dataset(digest=digest)


def test_a_dataset_that_a_living_process_uses_is_kept(source: Path) -> None:
    dataset = Dataset(source)
    assert removed() == []
    assert DatasetStore().remove_unused(lambda: ()) == []
    assert stored(dataset).is_dir()


def test_a_fork_of_a_process_holds_nothing_for_it(source: Path) -> None:
    code = """
import os, sys
from sandboxkit import Dataset
digest = Dataset(sys.argv[1]).digest
if os.fork() == 0:
    sys.stdin.read()
else:
    print(digest, flush=True)
os._exit(0)
"""
    command = [sys.executable, "-c", code, str(source)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        digest = process.stdout.readline().strip()
        assert process.wait(60) == 0
        assert removed() == [digest]  # the child lives until its stdin is closed


def test_the_next_process_removes_what_a_killed_one_has_copied(source: Path, state: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from sandboxkit import Dataset
from sandboxkit.datasets import _snapshot
hashed = _snapshot._hashed
def killed(root, entry, file, copied):
    if copied is not None and entry.name == b"sub/run":
        os.kill(os.getpid(), signal.SIGKILL)
    return hashed(root, entry, file, copied)
_snapshot._hashed = killed
Dataset(sys.argv[1])
"""
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program, source], timeout=60)
        assert done.returncode == -signal.SIGKILL
        assert [name for name in os.listdir(state / "datasets") if name.startswith(".partial-")]
    assert removed() == []
    assert os.listdir(state / "datasets") == ["lock"]
    subprocess.run([sys.executable, "-c", program, source], timeout=60)
    assert (stored(Dataset(source)) / "a.txt").read_text() == "one"
    assert not [name for name in os.listdir(state / "datasets") if name.startswith(".partial-")]


def test_processes_that_store_one_dataset_at_once_store_it_once(source: Path, state: Path) -> None:
    (source / "large").write_bytes(os.urandom(8 << 20))
    code = "import sys; from sandboxkit import Dataset; print(Dataset(sys.argv[1]).digest)"
    command = [sys.executable, "-c", code, str(source)]
    with_pipes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    digests = {process.communicate(timeout=120)[0] for process in with_pipes}
    assert digests == {f"{Dataset(source).digest}\n"}
    assert len(os.listdir(state / "datasets")) == 2
