"""The archives of snapshots in the user's state folder: each stored once, under the digest of its content."""

import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from io import BufferedReader, FileIO
from pathlib import Path

from sandboxkit.errors import ConfigurationError, ProviderUnavailableError, SnapshotNotFoundError
from sandboxkit.provider import PathLock, remove_unlocked, state_folder
from sandboxkit.providers.kubernetes._errors import NAME
from sandboxkit.types import SnapshotInfo

_ID = re.compile(r"snapshot-[0-9a-f]{16}")
_RECORD, _ARCHIVE, _PARTIAL = ".json", ".tar.gz", ".partial-"


@dataclass(frozen=True, slots=True)
class KeptFiles:
    """The record of a snapshot."""

    id: str
    content: str
    """The SHA-256 digest of its archive."""
    bytes: int
    """The size of its archive."""
    unpacked: int
    """The size (bytes) of its archive when it is not compressed."""
    created: float
    expires: float
    parent: str | None
    name: str | None
    tags: dict[str, str]
    image: str
    places: list[str]
    """The writable places of its sandbox."""
    pushed: str | None = None
    """The image, as REPOSITORY@DIGEST with the repository that `snapshot_registry` named; None: none."""

    @property
    def info(self) -> SnapshotInfo:
        """The snapshot's public description."""
        return SnapshotInfo(
            id=self.id,
            provider=NAME,
            kind="files",
            bytes=self.bytes,
            created_at=datetime.fromtimestamp(self.created, UTC),
            expires_at=datetime.fromtimestamp(self.expires, UTC),
            parent=self.parent,
            name=self.name,
            tags=self.tags,
        )


class ArchiveStore:
    """A folder with one record for each snapshot, and one archive for each content.

    A lock on the folder keeps changes apart. A process holds a lock on the partial archive that it writes, so
    that the next change removes what killed processes have left.
    """

    def __init__(self) -> None:
        self.path = state_folder() / "kubernetes-snapshots"

    @staticmethod
    def new_id() -> str:
        """Return the id of a new snapshot."""
        return f"snapshot-{secrets.token_hex(8)}"

    def load(self, snapshot_id: str) -> KeptFiles:
        """Return a snapshot's record. Raises SnapshotNotFoundError or, if unreadable, ConfigurationError."""
        path = self._record(snapshot_id)
        if not _ID.fullmatch(snapshot_id):
            raise self._missing(snapshot_id)
        try:
            kept = _read(path)
        except FileNotFoundError as error:
            raise self._missing(snapshot_id) from error
        if kept is None:
            raise ConfigurationError(f"{path}: {_unreadable(snapshot_id)}")
        return kept

    def find(self, snapshot_id: str) -> KeptFiles | None:
        """Return a snapshot's record; None if there is none, or it is unreadable."""
        path = self._record(snapshot_id)
        return _read(path) if _ID.fullmatch(snapshot_id) and path.exists() else None

    def open(self, kept: KeptFiles) -> BufferedReader:
        """Open a snapshot's archive, which can be read even if it is removed meanwhile."""
        try:
            return (self.path / f"{kept.content}{_ARCHIVE}").open("rb")
        except FileNotFoundError as error:
            raise self._missing(kept.id) from error

    def all(self) -> list[SnapshotInfo]:
        """Return all snapshots, and remove what killed processes have left.

        A snapshot with an unreadable record has the remedy as its name, and never expires.
        """
        if not self.path.is_dir():
            return []
        with self._changing():
            return [
                kept.info
                if kept
                else SnapshotInfo(
                    id=path.stem,
                    provider=NAME,
                    kind="files",
                    bytes=None,
                    created_at=datetime.fromtimestamp(path.stat().st_mtime, UTC),
                    expires_at=None,
                    name=_unreadable(path.stem),
                )
                for path, kept in self._records().items()
            ]

    @contextmanager
    def partial(self, sandbox_id: str) -> Iterator[FileIO]:
        """Yield a new file for the archive of a sandbox; it is removed at the end unless `keep` was called.

        Raises ProviderUnavailableError while another snapshot of the sandbox is taken, whose end would let its
        programs go on.
        """
        with self._changing():
            path = self.path / f"{_PARTIAL}{sandbox_id}"
            if path.exists():
                raise ProviderUnavailableError(
                    f"another snapshot of sandbox {sandbox_id!r} is being taken: try again when it is done"
                )
            file = path.open("xb", buffering=0)  # so that closing it cannot find a full disk
            lock = PathLock.take(path)
            assert lock is not None
        with lock, file:
            try:
                yield file
            finally:
                path.unlink(missing_ok=True)

    def keep(self, file: FileIO, kept: KeptFiles) -> None:
        """Store a partial archive, which is whole by now, as that of a snapshot."""
        with self._changing():
            part = self.path / f"{_PARTIAL}{kept.id}"
            with part.open("w") as record:
                json.dump(asdict(kept), record)
                record.flush()
                os.fsync(record)
            os.fsync(file)  # or a machine that loses power may keep the names alone
            os.replace(str(file.name), self.path / f"{kept.content}{_ARCHIVE}")
            part.replace(self._record(kept.id))

    def remove(self, snapshot_id: str) -> None:
        """Remove a snapshot, and its archive unless another snapshot has the same content."""
        if _ID.fullmatch(snapshot_id) and self.path.is_dir():
            with self._changing():
                self._record(snapshot_id).unlink(missing_ok=True)
                self._sweep()

    def _missing(self, snapshot_id: str) -> SnapshotNotFoundError:
        return SnapshotNotFoundError(
            f"no snapshot {snapshot_id!r} in {self.path}; it was deleted, has expired and was removed, or "
            "another machine has it"
        )

    def _record(self, snapshot_id: str) -> Path:
        return self.path / f"{snapshot_id}{_RECORD}"

    def _records(self) -> dict[Path, KeptFiles | None]:
        """Return the paths of all records with their content, or with None where that is unreadable."""
        return {path: _read(path) for path in sorted(self.path.glob(f"snapshot-*{_RECORD}"))}

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with PathLock.of(self.path):
            self._sweep()
            yield

    def _sweep(self) -> None:
        """Remove archives without a snapshot, and partial ones that no living process writes.

        Any archive may be that of an unreadable record, so that none is removed while there is one.
        """
        records = self._records().values()
        archives = {f"{kept.content}{_ARCHIVE}" for kept in records if kept}
        # Older versions wrote archives that end in .tar.
        for path in self.path.glob("*.tar*") if None not in records else ():
            if path.name not in archives:
                path.unlink()
        remove_unlocked(self.path.glob(f"{_PARTIAL}*"))


def _read(path: Path) -> KeptFiles | None:
    """Return a record; None if it is damaged, or has other fields than those of this version."""
    try:
        return KeptFiles(**json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        return None


def _unreadable(snapshot_id: str) -> str:
    return (
        "unreadable record, perhaps of another version of sandboxkit: use that version, or run "
        f"sandboxkit snapshots rm {snapshot_id}"
    )
