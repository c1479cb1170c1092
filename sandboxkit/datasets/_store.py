"""The store of datasets below the state folder, which all processes of a user share."""

import errno
import fcntl
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from pathlib import Path

from sandboxkit._life._folder_store import FolderStore
from sandboxkit._life._locks import PathLock
from sandboxkit._life._state_folder import state_folder
from sandboxkit.datasets import _snapshot
from sandboxkit.errors import CapacityError, ConfigurationError, DatasetNotFoundError

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[0-9a-f]{64}")
_used: dict[Path, PathLock] = {}
"""The locks on the snapshots that this process uses."""


def is_digest(text: str) -> bool:
    """Return whether a text has the form of a dataset's digest."""
    return _DIGEST.fullmatch(text) is not None


class DatasetStore:
    """Stored snapshots, one folder each, named by the digest of its content.

    A process that adds or removes snapshots locks the folder of all. A process that uses a snapshot holds a
    shared lock on it, which takes one descriptor, until the process ends.
    """

    def __init__(self) -> None:
        """Find the store. Raises ConfigurationError if the state folder cannot be used."""
        self.path = state_folder() / "datasets"
        self._folders = FolderStore(self.path, _remove_tree)

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
        if not self._try_use(digest):
            with PathLock.of(self.path):
                if not self._try_use(digest):
                    self._fill(source, digest)
                    self._try_use(digest)
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
        with PathLock.of(self.path), ExitStack() as locks:
            self._folders.sweep()
            free = []
            for name in filter(_NAME.fullmatch, self._folders.entries()):
                if (lock := PathLock.take(self.path / name)) is not None:
                    locks.enter_context(lock)
                    free.append(f"sha256:{name}")
            kept = in_use() if free else ()
            removed = [digest for digest in free if digest not in kept]
            for digest in () if dry_run else removed:
                self._folders.discard(digest[7:])
        return removed

    def _folder(self, digest: str) -> Path:
        if not is_digest(digest):
            raise ConfigurationError(
                f"digest={digest!r} is not valid; use 'sha256:' and 64 hexadecimal digits, as Dataset.digest is"
            )
        return self.path / digest.partition(":")[2]

    def _try_use(self, digest: str) -> bool:
        folder = self._folder(digest)
        if folder not in _used:
            lock = PathLock.take(folder, fcntl.LOCK_SH, wait=True)
            if lock is None:
                return False
            if _used.setdefault(folder, lock) is not lock:
                lock.release()  # another thread was faster
        return folder.is_dir()

    def _fill(self, source: str, digest: str) -> None:
        try:
            with self._folders.temporary() as folder:
                copied = _snapshot.read(source, folder / "copy")
                if copied != digest:
                    raise ConfigurationError(
                        f"dataset {source!r} changed while it was read; stop what writes there, and try again"
                    )
                (folder / "copy").rename(self._folder(digest))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise CapacityError(
                f"dataset {source!r} does not fit into {self.path}: {error.strerror}; free space there, "
                "or set SANDBOXKIT_STATE_DIR to a folder on a larger disk"
            ) from error


def _remove_tree(folder: Path) -> None:
    import shutil  # which imports every compression

    shutil.rmtree(folder)


os.register_at_fork(after_in_child=_used.clear)
