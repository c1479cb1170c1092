"""Volumes of local sandboxes: folders below the state folder that sandboxes write to."""

import fcntl
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from sandboxkit.errors import VolumeError
from sandboxkit.provider import FolderStore, PathLock
from sandboxkit.providers.local._folders import make_folder, remove_tree
from sandboxkit.providers.local._state import StateDir

_FOLDER = re.compile(r"([a-z0-9-]+)\.[0-9a-f]{16}")


class LocalVolumes:
    """The volumes of this user, one folder each.

    A folder has a random suffix, so that a volume that is made again is never mistaken for the removed one.
    A start holds a shared lock (flock) on each folder until the sandbox's metadata name the volume; a
    removal takes an exclusive one. The lock on the parent folder is held only while a name is looked up or made.
    """

    def __init__(self, state: StateDir, owner: tuple[int, int]) -> None:
        """`owner` is the uid and gid of the folders."""
        self._state, self._owner = state, owner

    @property
    def _parent(self) -> Path:
        return self._state.path / "volumes"

    @contextmanager
    def held(self, volumes: Mapping[str, str]) -> Iterator[dict[str, str]]:
        """Make missing volumes and keep all from removal; yield the folder of each mount point.

        Raises VolumeError while one of them is being removed.
        """
        with ExitStack() as locks:
            folders = {point: self._hold(name, locks) for point, name in volumes.items()}
            yield folders

    def names(self) -> list[str]:
        """Return the names of all volumes, sorted."""
        return sorted(self._folders())

    def remove(self, name: str, in_use: Callable[[], Collection[str]]) -> None:
        """Remove a volume. `in_use` returns the names of volumes that sandboxes mount; it is called once,
        when no sandbox can begin to use this one.

        Raises VolumeError if there is no such volume, or if a sandbox mounts it.
        """
        store = FolderStore(self._parent, remove_tree)
        folder = self._folders().get(name)
        if folder is None:
            raise VolumeError(
                f"no volume {name!r} in {self._parent}; `sandboxkit volumes ls` shows all"
            )
        lock = PathLock.take(folder)
        with lock or nullcontext():
            if lock is None or name in in_use():
                raise VolumeError(
                    f"volume {name!r} is in use: stop the sandboxes that mount it, and try again"
                )
            store.discard(folder.name)
        store.sweep()

    def _hold(self, name: str, locks: ExitStack) -> str:
        with PathLock.of(self._parent):
            folder = self._folders().get(name)
            if folder is None:
                folder = self._parent / f"{name}.{secrets.token_hex(8)}"
                make_folder(folder)
            if (lock := PathLock.take(folder, fcntl.LOCK_SH)) is None:
                raise VolumeError(f"volume {name!r} is being removed: try again")
            locks.enter_context(lock)
            if folder.stat().st_uid != self._owner[0]:  # whoever made it may have been killed since
                os.chown(folder, *self._owner)
        return str(folder)

    def _folders(self) -> dict[str, Path]:
        try:
            found = os.listdir(self._parent)
        except FileNotFoundError:
            return {}
        matches = filter(None, map(_FOLDER.fullmatch, found))
        return {match[1]: self._parent / match[0] for match in matches}
