"""The store of datasets below the state folder, which all processes of a user share."""

import errno
import fcntl
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxkit._state_folder import state_folder
from sandboxkit.datasets import _snapshot
from sandboxkit.errors import CapacityError, ConfigurationError, DatasetNotFoundError

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[0-9a-f]{64}")
_PARTIAL = ".partial-"
_LOCK = "lock"
_locks: "dict[Path, _Locks]" = {}
_mutex = threading.RLock()


def is_digest(text: str) -> bool:
    """Return whether a text has the form of a dataset's digest."""
    return _DIGEST.fullmatch(text) is not None


class DatasetStore:
    """Stored snapshots, one folder each, named by the digest of its content.

    Record locks on one file keep processes apart. The kernel releases those of a process that dies, and
    a forked child inherits none. Byte 0 is locked by the process that adds or removes snapshots. A
    process that uses a snapshot holds a shared lock on a byte of that snapshot until the process ends.
    """

    def __init__(self) -> None:
        """Find the store. Raises ConfigurationError if the state folder cannot be used."""
        self.path = state_folder() / "datasets"

    def add(self, source: str) -> str:
        """Store a folder's content unless it is stored already; return its digest.

        Raises what `Dataset` raises.
        """
        source = os.path.abspath(os.path.expanduser(source))
        if not os.path.isdir(source):
            there = "is no folder" if os.path.lexists(source) else "does not exist"
            raise ConfigurationError(f"dataset {source!r} {there}; give the path of a folder")
        if self.path.is_relative_to(os.path.realpath(source)):
            raise ConfigurationError(
                f"dataset {source!r} contains the store of datasets itself, {self.path}; give another folder"
            )
        digest = _snapshot.read(source)
        if self._has(digest) and self._try_use(digest):
            return digest
        with self._changing() as locks:
            if not self._folder(digest).is_dir():
                self._fill(source, digest)
            locks.use(self._byte(digest))
        return digest

    def use(self, digest: str) -> Path:
        """Return a snapshot's folder, which stays in the store until this process ends.

        It may wait for another process that adds a snapshot. Raises ConfigurationError for text that is
        no digest, and DatasetNotFoundError for a snapshot that is not stored.
        """
        folder = self._folder(digest)
        if self._try_use(digest):
            return folder
        raise DatasetNotFoundError(
            f"no dataset {digest!r} is stored in {self.path}: store it with Dataset('folder'), or set "
            "SANDBOXKIT_STATE_DIR to the state folder that has it"
        )

    def archive(self, digest: str) -> Iterator[bytes]:
        """Return a tar of a snapshot, for a copy elsewhere; it is read while the iterator is consumed.

        Names are relative to the snapshot, whose own folder comes first, as ".". Raises what `use` raises.
        """
        from sandboxkit.transfers._archive import (
            stored,  # tarfile costs a tenth of the whole import
        )

        return stored(self.use(digest))

    def remove_unused(
        self, in_use: Callable[[], Collection[str]], *, dry_run: bool = False
    ) -> list[str]:
        """Remove snapshots that no living process uses and that `in_use` does not return.

        `in_use` is called once, when no process can begin to use a candidate. Returns the digests of what
        was removed, or would be with `dry_run`. Incomplete copies of killed processes go as well.
        """
        if not self.path.is_dir():
            return []
        removed = []
        with self._changing() as locks:
            stored = [f"sha256:{name}" for name in os.listdir(self.path) if _NAME.fullmatch(name)]
            free = [digest for digest in sorted(stored) if locks.reserve(self._byte(digest))]
            try:
                kept = in_use() if free else ()
                removed = [digest for digest in free if digest not in kept]
                for digest in () if dry_run else removed:
                    # Renamed first: a partly removed snapshot must not look like a whole one.
                    self._folder(digest).rename(self.path / f"{_PARTIAL}{digest[7:]}")
                    self._sweep()
            finally:
                for digest in free:
                    locks.release(self._byte(digest))
        return removed

    def _folder(self, digest: str) -> Path:
        if not is_digest(digest):
            raise ConfigurationError(
                f"digest={digest!r} is not valid; use 'sha256:' and 64 hexadecimal digits, as Dataset.digest is"
            )
        return self.path / digest.partition(":")[2]

    def _has(self, digest: str) -> bool:
        return self._folder(digest).is_dir()

    def _byte(self, digest: str) -> int:
        """Return the offset of a snapshot's byte. Two snapshots with one byte are removed together or not."""
        return 1 + int(digest[7:22], 16)

    def _try_use(self, digest: str) -> bool:
        if not self.path.is_dir():
            return False
        with _mutex:
            locks = self._lock_file()
            byte = self._byte(digest)
            fresh = locks.use(byte)
            if self._has(digest):
                return True
            if fresh:
                locks.release(byte)
            return False

    def _fill(self, source: str, digest: str) -> None:
        partial = self.path / f"{_PARTIAL}{digest[7:]}"
        try:
            copied = _snapshot.read(source, partial)
            if copied != digest:
                raise ConfigurationError(
                    f"dataset {source!r} changed while it was read; stop what writes there, and try again"
                )
            partial.rename(self._folder(digest))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise CapacityError(
                f"dataset {source!r} does not fit into {self.path}: {error.strerror}; free space there, "
                "or set SANDBOXKIT_STATE_DIR to a folder on a larger disk"
            ) from error
        finally:
            self._sweep()

    def _sweep(self) -> None:
        """Remove what is incomplete. Call it while no other process adds or removes anything."""
        for path in self.path.glob(f"{_PARTIAL}*"):
            import shutil  # which imports every compression

            shutil.rmtree(path)

    @contextmanager
    def _changing(self) -> "Iterator[_Locks]":
        self.path.mkdir(mode=0o700, exist_ok=True)
        with _mutex:
            locks = self._lock_file()
            locks.change()
            try:
                self._sweep()
                yield locks
            finally:
                locks.release(0)

    def _lock_file(self) -> "_Locks":
        locks = _locks.get(self.path)
        if locks is None or not locks.valid:
            locks = _locks[self.path] = _Locks(self.path / _LOCK)
        return locks


class _Locks:
    """The record locks of this process on the lock file, which it opens once and never closes.

    Closing any descriptor of the file would release all of the process's locks.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._process = os.getpid()
        self._used: set[int] = set()

    @property
    def valid(self) -> bool:
        """Whether the file still exists and its locks belong to this process, not to its parent."""
        return self._process == os.getpid() and os.fstat(self._file).st_nlink > 0

    def change(self) -> None:
        """Wait until no other process adds or removes snapshots, and keep them from it."""
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, 0)

    def use(self, byte: int) -> bool:
        """Hold a snapshot for this process; return whether the process did not hold it before."""
        if byte in self._used:
            return False
        fcntl.lockf(self._file, fcntl.LOCK_SH, 1, byte)
        self._used.add(byte)
        return True

    def reserve(self, byte: int) -> bool:
        """Lock a snapshot against its use; return False if a process uses it, this one included."""
        if byte in self._used:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            return False
        return True

    def release(self, byte: int) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)
        self._used.discard(byte)


def _new_mutex() -> None:
    global _mutex  # a child must not wait for a thread that it does not have
    _mutex = threading.RLock()


os.register_at_fork(after_in_child=_new_mutex)
