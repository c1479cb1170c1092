"""Locks that the processes of a user share. The kernel releases those of a process that dies; a forked child has none."""

import fcntl
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Self

CREATED = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
"""The flags with which a file for locks is opened."""


class PathLock:
    """A lock on a folder or file (flock), held until `release` or the end of the `with` block.

    It excludes other threads of this process, too.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        """The descriptor of what is locked; -1 after the release."""
        _held.add(self)

    @classmethod
    def take(
        cls,
        path: "os.PathLike[str]",
        kind: int = fcntl.LOCK_EX,
        *,
        wait: bool = False,
        create: bool = False,
    ) -> Self | None:
        """Lock a path; return None if there is nothing, or another lock forbids this one.

        With `wait` the call blocks until no other lock does. With `create` a missing file is made.
        """
        while True:
            try:
                number = os.open(path, CREATED if create else os.O_RDONLY | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                return None
            lock = cls(number)
            try:
                fcntl.flock(number, kind if wait else kind | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(number), os.stat(path)):
                    return lock
            except (BlockingIOError, FileNotFoundError):
                pass
            except BaseException:
                lock.release()
                raise
            lock.release()
            if not wait:  # else another process has just removed it, or made it again
                return None

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Make a folder (mode 0700) unless it is there, and lock it once no other lock forbids that."""
        while True:
            folder.mkdir(mode=0o700, exist_ok=True)
            if (lock := cls.take(folder, wait=True)) is not None:
                return lock

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self.number >= 0:
            # Closing is not enough: a child that is being forked may have a copy.
            fcntl.flock(self.number, fcntl.LOCK_UN)
            self.leave()

    def leave(self) -> None:
        """Close the descriptor; a copy of it in another process keeps the lock."""
        # Not open any more before it is closed: another thread may fork now, and the child closes its locks.
        number, self.number = self.number, -1
        _held.discard(self)
        os.close(number)

    def write(self, text: str) -> None:
        """Replace the content of a file that was locked with `create`."""
        content = text.encode("utf-8", "backslashreplace")
        os.pwrite(self.number, content, 0)
        os.ftruncate(self.number, len(content))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def remove_unlocked(paths: Iterable[Path]) -> list[Path]:
    """Remove the files that nobody has locked, because their processes were killed; return the others."""
    locked = []
    for path in paths:
        if (lock := PathLock.take(path)) is None:
            locked.append(path)
            continue
        with lock:
            path.unlink(missing_ok=True)
    return locked


_held: "weakref.WeakSet[PathLock]" = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    for lock in list(_held):  # such a lock lasts as long as any process has its descriptor
        if lock.number >= 0:
            lock.leave()


os.register_at_fork(after_in_child=_leave_to_the_parent)
