"""A cap on live sandboxes that all processes of a user on this machine share; each takes one place."""

import fcntl
import os
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from sandboxkit import _arguments
from sandboxkit._state_folder import state_folder
from sandboxkit.errors import ConfigurationError
from sandboxkit.provider import Provider

_WAITING = 1 << 40
"""Offset of a byte beyond all places; waiting processes hold a shared lock on it."""
_FLOCK = "@hhqqi"
"""Linux's struct flock: type, whence, start, length, process."""


class MachineSemaphore:
    """A semaphore with `limit` places for one backend's sandboxes; used on the background loop only.

    Each place is a record lock on one byte of a file. The kernel releases the locks of a process
    that dies, and a forked child inherits none. All processes should use the same limit: one with a
    larger limit takes places that the others do not count.
    """

    def __init__(self, backend: str, limit: int) -> None:
        """Raise ConfigurationError if the lock file cannot be opened."""
        if backend not in _files:
            _files[backend] = _LockFile(backend)
        self._file, self._limit = _files[backend], limit

    def take(self) -> int | None:
        """Take a free place and return its number; None if none is free."""
        for place in range(self._limit):
            if place not in self._file.places and self._file.lock(place, fcntl.LOCK_EX):
                self._file.places.add(place)
                return place
        return None

    def leave(self, place: int) -> None:
        """Release a place, so that any process can take it."""
        self._file.unlock(place)
        self._file.places.discard(place)

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
        others = Counter(self._file.owners(self._limit))
        named = [f"process {pid} ({_command(pid)}) has {n}" for pid, n in others.items()]
        ours = f"max_live={self._limit}, of which this process has {len(self._file.places)}"
        return ", ".join([ours, *named])


class _LockFile:
    """The lock file of one backend, and the places that this process holds or waits for."""

    def __init__(self, backend: str) -> None:
        path = state_folder() / f"live-{backend.replace('/', '_')}"
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self.number = os.open(path, flags, 0o600)
        except OSError as error:
            raise ConfigurationError(
                f"max_live needs the file {path}: {error}; set SANDBOXKIT_STATE_DIR"
            ) from error
        # Record locks belong to the process: they do not exclude its own sandboxes from each other.
        self.places: set[int] = set()
        self.waiting: set[MachineSemaphore] = set()

    def lock(self, byte: int, kind: int) -> bool:
        """Lock a byte for this process; return False if another process holds it."""
        try:
            fcntl.lockf(self.number, kind | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            return False
        return True

    def unlock(self, byte: int) -> None:
        """Release this process's lock on a byte."""
        fcntl.lockf(self.number, fcntl.LOCK_UN, 1, byte)

    def owners(self, limit: int) -> Iterator[int]:
        """Yield the pid for each of the first `limit` places that other processes hold (Linux only)."""
        for place in range(limit if sys.platform == "linux" else 0):
            query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
            kind, *_, pid = struct.unpack(_FLOCK, fcntl.fcntl(self.number, fcntl.F_GETLK, query))
            if kind != fcntl.F_UNLCK and place not in self.places:
                yield pid


# Each file is opened only once: closing any descriptor of it releases all of the process's locks.
_files: dict[str, _LockFile] = {}


def _forget() -> None:
    # A forked child holds none of its parent's locks.
    for file in _files.values():
        os.close(file.number)
    _files.clear()


os.register_at_fork(after_in_child=_forget)


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
