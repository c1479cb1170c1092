"""Places: a cap on live sandboxes, shared by all processes of a user on this machine."""

import fcntl
import os
import random
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio

from sandboxkit._state_folder import state_folder
from sandboxkit.errors import ConfigurationError

_POLL_SECONDS = 0.01, 0.05
"""Range of the random poll interval; randomness gives each process a fair chance at a free place."""
_WAITING = 1 << 40
"""Offset of a byte beyond all places; waiting processes hold a shared lock on it."""

_FLOCK = "@hhqqi"
"""Linux's struct flock: type, whence, start, length, process."""


class MachineSemaphore:
    """The first `limit` places of one backend; used on the background loop only.

    Each place is a record lock on one byte of a file. The kernel releases the locks of a process
    that dies, and a forked child inherits none. All processes should use the same limit: one with a
    larger limit takes places that the others do not count.
    """

    def __init__(self, backend: str, limit: int) -> None:
        self._backend, self._limit = backend, limit
        self._line = anyio.Lock()

    async def take(self) -> int:
        """Wait for a free place, in FIFO order within this object; return its number.

        When cancelled, no place is held.
        """
        async with self._line:
            if (place := _held(self._backend).lock(self._limit)) is not None:
                return place
            held = _held(self._backend)
            held.waiting += 1
            try:
                # Poll: nothing notifies this process when another one releases a place.
                while (place := held.lock(self._limit)) is None:
                    held.say_waiting()
                    await anyio.sleep(random.uniform(*_POLL_SECONDS))
                return place
            finally:
                held.waiting -= 1
                held.say_waiting()

    def take_now(self) -> int | None:
        """Take a free place without waiting; None if none is free or another caller waits for one."""
        return None if self._line.locked() else _held(self._backend).lock(self._limit)

    def wanted(self) -> bool:
        """Return whether anyone else waits for a place, in this process or another."""
        held = _held(self._backend)
        return held.waiting > self._line.locked() or held.others_wait()

    def describe(self) -> str:
        """Return the cap and how many places each other process holds, for messages."""
        others = Counter(_held(self._backend).owners(self._limit))
        named = [f"process {pid} ({_command(pid)}) has {n}" for pid, n in others.items()]
        return ", ".join([f"max_live={self._limit}", *named])

    def leave(self, place: int) -> None:
        """Release a place for any process."""
        _held(self._backend).unlock(place)


class _Held:
    """The places of one backend that this process holds."""

    def __init__(self, backend: str) -> None:
        path = state_folder() / f"live-{backend.replace('/', '_')}"
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(path, flags, 0o600)
        except OSError as error:
            raise ConfigurationError(
                f"max_live needs the file {path}: {error}; set SANDBOXKIT_STATE_DIR"
            ) from error
        # Record locks belong to the process: they do not exclude its own sandboxes from each other.
        self._places: set[int] = set()
        self.waiting = 0
        self._reported = False

    def lock(self, limit: int) -> int | None:
        """Lock and return the first free place; None if there is none."""
        for place in range(limit):
            if place in self._places:
                continue
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except (BlockingIOError, PermissionError):
                continue  # another process holds it; POSIX allows either error
            self._places.add(place)
            return place
        return None

    def unlock(self, place: int) -> None:
        """Release a place."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)
        self._places.discard(place)

    def say_waiting(self) -> None:
        """Publish whether this process has waiters, for `others_wait` in other processes.

        The lock fails while another process checks it, so callers repeat this while they wait.
        """
        if self.waiting and not self._reported:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, _WAITING)
                self._reported = True
            except (BlockingIOError, PermissionError):
                pass
        elif not self.waiting and self._reported:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _WAITING)
            self._reported = False

    def others_wait(self) -> bool:
        """Return whether another process has waiters."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _WAITING)
        except (BlockingIOError, PermissionError):
            return True
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _WAITING)
        self._reported = False
        self.say_waiting()
        return False

    def owners(self, limit: int) -> Iterator[int]:
        """Yield the pid for each of the first `limit` places that other processes hold (Linux only)."""
        for place in range(limit if sys.platform == "linux" else 0):
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
            kind, _, _, _, pid = struct.unpack(
                _FLOCK, fcntl.fcntl(self._file, fcntl.F_GETLK, asked)
            )
            if kind != fcntl.F_UNLCK and place not in self._places:
                yield pid

    def close(self) -> None:
        """Close the file in a forked child, which holds none of the parent's locks."""
        os.close(self._file)


# Each file is opened only once: closing any descriptor of it releases all of the process's locks.
_files: dict[str, _Held] = {}


def _held(backend: str) -> _Held:
    if backend not in _files:
        _files[backend] = _Held(backend)
    return _files[backend]


def _forget() -> None:
    for held in _files.values():
        held.close()
    _files.clear()


os.register_at_fork(after_in_child=_forget)


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "of another namespace" if pid <= 0 else "which has ended"
    return " ".join(b" ".join(words).decode(errors="replace").split())[:80]
