"""Folders with content: filled under another name, renamed into place, and locked while they are used or removed."""

import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxkit._life._locks import PathLock
from sandboxkit._life._owners import is_alive

_TEMPORARY = ".temporary-"
_OLDER = re.compile(r"\.(?:(?:partial|removed)-[0-9a-f]+|[a-z]+-(\d+-\d+-\d+)-\w+)")
"""The names that older versions gave temporary folders, with the maker of some."""


class FolderStore:
    """The folders below `path`, which the processes of a user share; `remove_tree` removes one.

    A folder has its name only while it is whole. Its users have a shared `PathLock` on it, and whoever discards
    it an exclusive one. A temporary folder is locked by its maker, so a sweep knows those of killed processes.
    """

    def __init__(self, path: Path, remove_tree: Callable[[Path], object]) -> None:
        self.path, self._remove_tree = path, remove_tree

    def entries(self) -> list[str]:
        """Return the names of all files and folders, sorted; none if there is no such folder."""
        return sorted(os.listdir(self.path)) if self.path.is_dir() else []

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """Make a folder (mode 0700) that is removed in the end, or by a sweep after this process was killed."""
        self.sweep()
        while True:
            folder = self._unnamed()
            folder.mkdir(mode=0o700)
            if (lock := PathLock.take(folder)) is not None:
                break  # else a sweep has it, and removes it
        with lock:
            try:
                yield folder
            finally:
                self._remove_tree(folder)

    def discard(self, name: str) -> None:
        """Remove a folder on which the caller has an exclusive lock."""
        # Renamed first: a partly removed folder must not look like a whole one. A full disk allows that.
        self._remove_tree((self.path / name).rename(self._unnamed()))

    def sweep(self) -> None:
        """Remove the temporary folders of processes that were killed."""
        for name in self.entries():
            older = _OLDER.fullmatch(name)
            if older is not None and (older[1] is None or is_alive(older[1]) is False):
                self._remove_tree(self.path / name)
            elif name.startswith(_TEMPORARY) and (lock := PathLock.take(self.path / name)):
                with lock:
                    self._remove_tree(self.path / name)

    def _unnamed(self) -> Path:
        return self.path / f"{_TEMPORARY}{secrets.token_hex(8)}"
