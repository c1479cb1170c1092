"""A cap on live sandboxes that all processes of a user on this machine share; each takes one place."""

import fcntl
import os
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from sandboxkit._calls import _arguments
from sandboxkit._life._locks import CREATED
from sandboxkit._life._state_folder import state_folder
from sandboxkit.errors import ConfigurationError
from sandboxkit.provider import Provider

_WAITING = 1 << 40
"""Offset of a byte beyond all places; waiting processes hold a shared lock on it."""
_FLOCK = "@hhqqi"
"""Linux's struct flock: type, whence, start, length, process."""


class _LockFile:
    """A file on whose bytes this process has record locks, which exclude only other processes.

    It is opened once and never closed: closing any descriptor of it would release all of the process's locks.
    """

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, CREATED, 0o600)
        self.used: set[int] = set()
        """The places of this process."""
        self.waiting: set[MachineSemaphore] = set()
        """The semaphores of this process that wait for a place."""

    def lock(self, byte: int, kind: int) -> bool:
        """Lock a byte, in the place of this process's own lock; return False if another process forbids it."""
        try:
            fcntl.lockf(self.number, kind | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            return False
        return True

    def unlock(self, byte: int) -> None:
        """Release this process's lock on a byte."""
        fcntl.lockf(self.number, fcntl.LOCK_UN, 1, byte)


_files: dict[Path, _LockFile] = {}


def _leave_to_the_parent() -> None:
    for file in _files.values():
        os.close(file.number)
    _files.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)


class MachineSemaphore:
    """A semaphore with `limit` places for one backend's sandboxes; used on the background loop only.

    Each place is a record lock on one byte of a file. The kernel releases the locks of a process
    that dies, and a forked child inherits none. All processes should use the same limit: one with a
    larger limit takes places that the others do not count.
    """

    def __init__(self, backend: str, limit: int) -> None:
        """Raise ConfigurationError if the lock file cannot be opened."""
        path = state_folder() / f"live-{backend.replace('/', '_')}"
        self._limit = limit
        try:
            if path not in _files or os.fstat(_files[path].number).st_nlink == 0:
                _files[path] = _LockFile(path)
        except OSError as error:
            raise ConfigurationError(
                f"max_live needs the file {path}: {error}; set SANDBOXKIT_STATE_DIR"
            ) from error
        self._file = _files[path]

    def take(self) -> int | None:
        """Take a free place and return its number; None if none is free."""
        for place in range(self._limit):
            if place not in self._file.used and self._file.lock(place, fcntl.LOCK_EX):
                self._file.used.add(place)
                return place
        return None

    def leave(self, place: int) -> None:
        """Release a place, so that any process can take it."""
        self._file.unlock(place)
        self._file.used.discard(place)

    def wait(self, waiting: bool) -> None:
        """Publish whether this session waits for a place; `wanted` in other sessions reads it.

        This fails silently while another process reads, so repeat the call while waiting.
        """
        if waiting:
            self._file.waiting.add(self)
            self._file.lock(_WAITING, fcntl.LOCK_SH)
        elif self in self._file.waiting:
            self._file.waiting.discard(self)
            if not self._file.waiting:
                self._file.unlock(_WAITING)

    def wanted(self) -> bool:
        """Return whether anyone else waits for a place, in this process or another."""
        if self._file.waiting - {self} or not self._file.lock(_WAITING, fcntl.LOCK_EX):
            return True
        self._file.unlock(_WAITING)
        return False

    def describe(self) -> str:
        """Return the cap, and how many places each process holds, as text for messages."""
        others = Counter(self._owners())
        named = [f"process {pid} ({_command(pid)}) has {n}" for pid, n in others.items()]
        ours = f"max_live={self._limit}, of which this process has {len(self._file.used)}"
        return ", ".join([ours, *named])

    def _owners(self) -> Iterator[int]:
        """Yield the pid for each place that another process holds (Linux only)."""
        for place in range(self._limit if sys.platform == "linux" else 0):
            query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
            found = fcntl.fcntl(self._file.number, fcntl.F_GETLK, query)
            kind, *_, pid = struct.unpack(_FLOCK, found)
            if kind != fcntl.F_UNLCK and place not in self._file.used:
                yield pid


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "of another namespace" if pid <= 0 else "which has ended"
    return " ".join(b" ".join(words).decode(errors="replace").split())[:80]


def places(provider: Provider, max_live: int | None) -> MachineSemaphore | None:
    """Return the semaphore for the cap `max_live`, or else SANDBOXKIT_MAX_LIVE; None without a cap.

    Raises ConfigurationError for a bad cap, and for a provider whose sandboxes run elsewhere.
    """
    name = "max_live"
    if max_live is None and provider.on_this_machine:
        given = os.environ.get("SANDBOXKIT_MAX_LIVE")
        if not given:
            return None
        name = "SANDBOXKIT_MAX_LIVE"
        max_live = int(given) if given.isdecimal() else _arguments.refuse(name, given, "a number")
    if max_live is None:
        return None
    _arguments.integer(name, max_live)
    if not provider.on_this_machine:
        raise ConfigurationError(
            f"max_live={max_live}: the sandboxes of {provider.name!r} are not on this machine; "
            "use max_concurrency"
        )
    return MachineSemaphore(provider.name, max_live)
