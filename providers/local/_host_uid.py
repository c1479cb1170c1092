"""Leases a host uid to each sandbox, under a file lock that the kernel releases.

The kernel counts descriptors in flight, queued signals, pipe pages and inotify instances per host
uid, so sandboxes with a common uid could exhaust each other's.
"""

import errno
import fcntl
import os
import random
import stat
import struct
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sandboxkit.errors import CapacityError, ConfigurationError
from sandboxkit.providers._capabilities import Capability

_RANGES = (range(2_000_000_000, 2_000_131_072), range(20_000, 60_000))
"""Candidate ranges. The first is outside of all that distributions, systemd and subordinate id ranges
assign; the second exists inside containers, too. Uids of accounts are left out."""
NEEDED = (
    Capability.CAP_CHOWN,
    Capability.CAP_DAC_OVERRIDE,
    Capability.CAP_FOWNER,
    Capability.CAP_KILL,
    Capability.CAP_SETGID,
    Capability.CAP_SETUID,
)
"""Root needs these to run programs as other users, and to give these users files."""
_ATTEMPTS = 1000
_LOCK = "sandboxkit-uids"


class LeasedUid:
    """The lease of a uid that no other sandbox on this machine has.

    It is a lock on one byte of a file. Processes that inherit the descriptor `lock` keep the lock.
    """

    def __init__(self, uid: int, lock: int) -> None:
        self.uid = uid
        self.lock = lock

    def give_back(self) -> None:
        """Release the uid, once no process runs with it. Idempotent."""
        if self.lock >= 0:
            # Unlock explicitly: a forked child may have a copy of the descriptor.
            _set_lock(self.lock, fcntl.F_UNLCK, self.uid)
            self.leave()

    def leave(self) -> None:
        """Close our descriptor; processes that inherited it keep the lock. Idempotent."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def lend(found: range) -> LeasedUid:
    """Lease a free uid of a range, by a lock in this user's file.

    The first uid is never lent. Raises CapacityError if 1000 random uids in a
    row are taken, and ConfigurationError if the lock file cannot be used.
    """
    lock = _open()
    try:
        for _ in range(_ATTEMPTS):
            # Chosen at random, so that a uid is not reused soon.
            uid = random.randrange(found.start + 1, found.stop)
            if uid not in _accounts() and _set_lock(lock, fcntl.F_WRLCK, uid):
                return LeasedUid(uid, lock)
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    raise CapacityError(
        f"no free uid for another sandbox between {found.start} and {found.stop}: "
        "end some sandboxes"
    )


@cache
def uids() -> range | None:
    """Return root's range for uids and gids of sandboxes; None in a user namespace without one.

    The first owns images and is never lent.
    """
    if sys.platform != "linux":
        return None
    maps = [_mapped("/proc/self/uid_map"), _mapped("/proc/self/gid_map")]
    for candidate in _RANGES:
        if all(
            any(part.start <= candidate.start and candidate.stop <= part.stop for part in mapped)
            for mapped in maps
        ):
            return candidate
    return None


def _mapped(path: str) -> list[range]:
    with open(path) as file:
        numbers = [[int(field) for field in line.split()] for line in file]
    return [range(first, first + count) for first, _, count in numbers]


@cache
def _accounts() -> frozenset[int]:
    def numbers() -> Iterator[int]:
        for path in ("/etc/passwd", "/etc/group"):
            try:
                lines = Path(path).read_text(errors="replace").splitlines()
            except FileNotFoundError:
                continue
            for line in lines:
                fields = line.split(":")
                if len(fields) > 2 and fields[2].isdigit():
                    yield int(fields[2])

    return frozenset(numbers())


def _path() -> Path:
    """Return the lock file that all programs of this user use, whatever their state folder."""
    uid = os.geteuid()
    runtime, own = ("/run", "") if uid == 0 else (f"/run/user/{uid}", f"-{uid}")
    return Path(runtime, _LOCK) if os.access(runtime, os.W_OK) else Path(f"/tmp/{_LOCK}{own}")


def _open() -> int:
    """Open the lock file anew, because locks belong to the open file description."""
    path = _path()
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(path, flags, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"the lock {path} for the uids of sandboxes cannot be opened: {error.strerror}"
        ) from error
    found = os.fstat(file)
    if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
        os.close(file)
        raise ConfigurationError(
            f"{path} must be a file of uid {os.geteuid()} with mode 0600; remove it"
        )
    return file


def _set_lock(file: int, kind: int, uid: int) -> bool:
    """Lock or unlock a uid's byte, which may lie past the file's end; return False if it is taken."""
    wanted = struct.pack("hhqqi4x", kind, os.SEEK_SET, uid, 1, 0)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, wanted)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True
