"""The folder of local snapshots: their descriptions, locks, time of last use, and the limit of their sizes."""

import fcntl
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sandboxkit.errors import CapacityError, ConfigurationError, SnapshotNotFoundError
from sandboxkit.providers.local._folders import make_folder
from sandboxkit.providers.local._removal import remove_tree
from sandboxkit.providers.local._state import OwnerProcess

SNAPSHOT_ID = re.compile(r"snapshot-[0-9a-f]{16}")
_TAKING = re.compile(r"\.(?:taking|removing)-(\d+-\d+-\d+)-\w+")
META = "meta.json"
"""The file of a snapshot's description. Its time of modification is that of the snapshot's last use."""
LIMIT_VARIABLE = "SANDBOXKIT_SNAPSHOTS_MB"
_SHARE = 0.8
"""Default limit, as a share of the file system."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Disk use of a copy, or the room that is left beside it, which is negative where it does not fit."""

    bytes: int = 0
    inodes: int = 0

    @classmethod
    def all(cls, uses: Iterable["DiskUse"]) -> "DiskUse":
        """Return the sum."""
        return sum(uses, cls())

    def __add__(self, other: "DiskUse") -> "DiskUse":
        return DiskUse(self.bytes + other.bytes, self.inodes + other.inodes)

    def __sub__(self, other: "DiskUse") -> "DiskUse":
        return DiskUse(self.bytes - other.bytes, self.inodes - other.inodes)

    def fits(self) -> bool:
        """Whether neither is negative."""
        return min(self.bytes, self.inodes) >= 0

    def __str__(self) -> str:
        return f"{self.bytes} bytes and {self.inodes} files"


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """The description that is stored with a snapshot."""

    created: float
    expires: float
    bytes: int
    parent: str | None
    name: str | None
    tags: dict[str, str]
    folders: list[str]
    """The folders that it has: ["/"], or the writable folders of a strict sandbox."""
    inodes: int = 0
    image: str | None = None
    """The sandbox's image, of which the snapshot has only what the sandbox changed."""
    image_version: str = ""
    used: float | None = None
    """When a sandbox last started from it, or a build found it (s since the epoch); None if neither. It is
    not stored."""

    @property
    def use(self) -> DiskUse:
        """Disk use of the snapshot."""
        return DiskUse(self.bytes, self.inodes)

    def to_json(self) -> str:
        """Return what is stored."""
        stored = asdict(self)
        del stored["used"]
        return json.dumps(stored)


@dataclass(frozen=True, slots=True)
class SnapshotStore:
    """The folder of a user's snapshots, one folder each, named by its id once it is complete."""

    path: Path

    def make(self) -> None:
        """Create the folder. It stays, because running providers have it mounted for their sandboxes."""
        make_folder(self.path, exist_ok=True)

    def load(self, snapshot_id: str) -> StoredSnapshot:
        """Return what is known about a snapshot. Raises SnapshotNotFoundError."""
        try:
            if SNAPSHOT_ID.fullmatch(snapshot_id):
                with open(self.path / snapshot_id / META) as file:
                    stored, changed = (
                        StoredSnapshot(**json.load(file)),
                        os.fstat(file.fileno()).st_mtime,
                    )
                return replace(stored, used=changed if changed > stored.created + 1e-3 else None)
        except FileNotFoundError as error:
            raise self._missing(snapshot_id) from error
        except (ValueError, TypeError) as error:
            raise SnapshotNotFoundError(
                f"the description of {snapshot_id!r} in {self.path} cannot be read ({error}): remove the "
                f"snapshot with sandboxkit snapshots rm {snapshot_id}"
            ) from error
        raise self._missing(snapshot_id)

    def mark_used(self, snapshot_id: str) -> None:
        """Make a snapshot the most recently used. Raises SnapshotNotFoundError."""
        try:
            os.utime(self.path / snapshot_id / META)
        except FileNotFoundError as error:
            raise self._missing(snapshot_id) from error

    def _missing(self, snapshot_id: str) -> SnapshotNotFoundError:
        return SnapshotNotFoundError(
            f"no snapshot {snapshot_id!r} in {self.path}; it was deleted, or has expired and was removed"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(name for name in self._names() if SNAPSHOT_ID.fullmatch(name)))

    def known(self) -> dict[str, StoredSnapshot]:
        """Return what is known about all snapshots, except those whose description cannot be read."""
        found = dict[str, StoredSnapshot]()
        for each in self:
            with suppress(SnapshotNotFoundError):  # perhaps another process has just removed it
                found[each] = self.load(each)
        return found

    def _names(self) -> list[str]:
        return os.listdir(self.path) if self.path.is_dir() else []

    def limit(self) -> DiskUse:
        """Return what all snapshots together may take. Raises ConfigurationError for a bad variable."""
        system = os.statvfs(self.path)
        share = DiskUse(
            int(system.f_blocks * system.f_frsize * _SHARE),
            int(system.f_files * _SHARE) or sys.maxsize,  # 0: inodes are made as they are needed
        )
        given = os.environ.get(LIMIT_VARIABLE)
        if not given:
            return share
        if not (given.isascii() and given.isdecimal()):
            raise ConfigurationError(f"{LIMIT_VARIABLE}={given!r} is not a number of MiB")
        return replace(share, bytes=int(given) << 20)

    def temporary(self, why: str) -> Path:
        """Return a new path for a folder that `sweep` removes once this process is gone."""
        return self.path / f".{why}-{OwnerProcess.me()}-{secrets.token_hex(8)}"

    def sweep(self) -> None:
        """Remove what processes left that were killed while they took or removed a snapshot."""
        for name in self._names():
            match = _TAKING.fullmatch(name)
            if match is not None:
                maker = OwnerProcess.parse(match[1])
                if maker.is_here and not maker.alive():
                    remove_tree(self.path / name)

    @contextmanager
    def locked(self, snapshot_id: str, kind: int) -> Iterator[bool]:
        """Hold a lock on a snapshot; yield False if it is gone, or if another lock forbids this one."""
        try:
            folder = os.open(self.path / snapshot_id, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield False
            return
        try:
            with suppress(BlockingIOError):
                fcntl.flock(folder, kind | fcntl.LOCK_NB)
                yield (self.path / snapshot_id).exists()
                return
            yield False
        finally:
            with suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_UN)  # a fork may have a copy of the descriptor
            os.close(folder)


def full_disk(store: Path, partial: Path) -> CapacityError:
    usage = shutil.disk_usage(store)
    copied = [
        os.lstat(os.path.join(folder, name))
        for folder, inner, names in os.walk(partial)
        for name in (*inner, *names)
    ]
    written = DiskUse(sum(each.st_blocks for each in copied) * 512, len(copied))
    return CapacityError(
        f"the snapshot does not fit into {store}: the disk of {usage.total} bytes was full after {written} "
        "of it; free space there with sandboxkit cleanup --snapshots, or set SANDBOXKIT_STATE_DIR to a "
        "folder on a larger disk"
    )
