"""Records of one account's images and snapshots at a vendor: one file each in the user's state folder."""

import hashlib
import json
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from sandboxkit.errors import ConfigurationError
from sandboxkit.provider import state_folder
from sandboxkit.providers._hosted import install
from sandboxkit.types import SnapshotInfo

_T = TypeVar("_T")

SNAPSHOT_TAG = "sandboxkit.snapshot"
"""The tag of a sandbox that names the snapshot from which it started."""
SNAPSHOT_NAME = "sandboxkit-snapshot"
"""The beginning of the names of snapshots."""
_ID = re.compile(
    rf"(?:[\w.-]+/)?{SNAPSHOT_NAME}-[0-9a-f]{{16}}-([0-9a-f]{{8,10}})-([0-9a-f]{{8,10}})-([0-9a-f]{{8}})(?::[\w.-]+)?",
    re.ASCII,
)
"""A vendor may add its account before the name, and a version or its own id behind it."""


@dataclass(frozen=True, slots=True)
class Baked:
    """An image with the agent built in, made by `sandboxkit bake`."""

    image: str
    """The image from which it was made."""
    reference: str
    """The vendor's reference, which new sandboxes use instead of `image`."""
    version: str
    """The version of its agent, see `install.version`."""

    @property
    def current(self) -> bool:
        """Whether it has the agent of this sandboxkit version; starts ignore all other baked images."""
        return self.version == install.version()


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """The fields of a snapshot that no vendor stores."""

    id: str
    parent: str | None = None
    name: str | None = None
    tags: Mapping[str, str] | None = None

    def info(self, provider: str) -> SnapshotInfo | None:
        """Describe the snapshot, whose id has its times; None for one that is not ours."""
        match = _ID.fullmatch(self.id)
        if match is None:
            return None
        created, expires = (datetime.fromtimestamp(int(match[n], 16), UTC) for n in (1, 2))
        return SnapshotInfo(
            id=self.id,
            provider=provider,
            kind="files",
            bytes=None,
            created_at=created,
            expires_at=expires,
            parent=self.parent,
            name=self.name,
            tags=self.tags or {},
        )


def snapshot_name(machine: str, expires: float) -> str:
    """Return a name for a new snapshot of a sandbox whose run `machine` identifies."""
    times = f"{int(time.time()):08x}-{math.ceil(expires):08x}"
    return f"{SNAPSHOT_NAME}-{secrets.token_hex(8)}-{times}-{short(machine, 8)}"


def is_snapshot(snapshot_id: str) -> bool:
    """Return whether an id is that of a snapshot of ours."""
    return _ID.fullmatch(snapshot_id) is not None


def is_of(snapshot_id: str, machine: str) -> bool:
    """Return whether a snapshot was taken of a sandbox in the run that `machine` identifies."""
    match = _ID.fullmatch(snapshot_id)
    return match is not None and match[3] == short(machine, 8)


class AccountRecords(Generic[_T]):
    """Records by a key. Names of files contain only hashes of keys and accounts, which may be secret."""

    def __init__(
        self,
        folder: str,
        kind: Callable[..., _T],
        prefix: str,
        name: Callable[[str], str],
    ) -> None:
        """`kind` is the dataclass of a record, `prefix` that of the account's files, and `name` maps a key to
        the rest of a file's name."""
        self._folder, self._kind, self._prefix, self._name = folder, kind, prefix, name

    def find(self, key: str) -> _T | None:
        """Return a record, or None."""
        try:
            return self._read(self.path(key))
        except ConfigurationError:
            return None  # the state folder is unusable; `keep` raises the error

    def keep(self, key: str, record: Any) -> None:  # Any: a dataclass, which no type says
        """Store a record in the place of an earlier one."""
        path = self.path(key)
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(f".{secrets.token_hex(8)}")
        part.write_text(json.dumps(asdict(record)))
        os.replace(part, path)

    def forget(self, key: str) -> None:
        """Delete a record, if there is one."""
        self.path(key).unlink(missing_ok=True)

    def __iter__(self) -> Iterator[_T]:
        for path in sorted(self.paths()):
            if (record := self._read(path)) is not None:
                yield record

    def paths(self) -> set[Path]:
        """Return the account's files."""
        return set((state_folder() / self._folder).glob(f"{self._prefix}*.json"))

    def path(self, key: str) -> Path:
        """Return the file of a record."""
        return state_folder() / self._folder / f"{self._prefix}{self._name(key)}.json"

    def _read(self, path: Path) -> _T | None:
        try:
            return self._kind(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None  # missing, or written by another version


def short(text: str, digits: int) -> str:
    """Return the first hexadecimal digits of a text's hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def snapshot_records(prefix: str) -> AccountRecords[SnapshotRecord]:
    """Return the records of an account's snapshots; the names of their files begin with `prefix`."""

    def name(snapshot_id: str) -> str:
        plain = snapshot_id.rpartition("/")[2].partition(":")[0]
        return plain if is_snapshot(snapshot_id) else short(snapshot_id, 8)

    return AccountRecords("snapshot-records", SnapshotRecord, prefix, name)
