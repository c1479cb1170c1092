"""The folder of local snapshots: their descriptions, locks, time of last use, and the limit of their sizes."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sandboxkit.errors import CapacityError, ConfigurationError, SnapshotNotFoundError
from sandboxkit.provider import FolderStore
from sandboxkit.providers.local._folders import make_folder, remove_tree

SNAPSHOT_ID = re.compile(r"snapshot-[0-9a-f]{16}")
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


class SnapshotStore(FolderStore):
    """The folder of a user's snapshots, one folder each, named by its id once it is complete."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, remove_tree)

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
        return filter(SNAPSHOT_ID.fullmatch, self.entries())

    def known(self) -> dict[str, StoredSnapshot]:
        """Return what is known about all snapshots, except those whose description cannot be read."""
        found = dict[str, StoredSnapshot]()
        for each in self:
            with suppress(SnapshotNotFoundError):  # perhaps another process has just removed it
                found[each] = self.load(each)
        return found

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


def disk_use(partial: Path) -> DiskUse:
    """Return the disk use of a copy that was cut short."""
    copied = [
        os.lstat(os.path.join(folder, name))
        for folder, inner, names in os.walk(partial)
        for name in (*inner, *names)
    ]
    return DiskUse(sum(each.st_blocks for each in copied) * 512, len(copied))


def full_disk(store: Path, written: DiskUse) -> CapacityError:
    """Return the error for a snapshot of which this much was written until the disk was full."""
    usage = shutil.disk_usage(store)
    return CapacityError(
        f"the snapshot does not fit into {store}: the disk of {usage.total} bytes was full after {written} "
        "of it; free space there with sandboxkit cleanup --snapshots, or set SANDBOXKIT_STATE_DIR to a "
        "folder on a larger disk"
    )
