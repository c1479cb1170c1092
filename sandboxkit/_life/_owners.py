"""Owners and ages: which process owns a sandbox, whether it is alive, and how old sandboxes and snapshots are.

Two tags are stored with each sandbox. The owner tag holds the machine's boot id, and the owner's
pid namespace, pid and start time. Only a process of the same boot and namespace can see that the
owner is gone; all others assume that it is alive. The birth tag, which snapshots have as well, holds
the boot id, the time since boot and the wall-clock time. On the same boot, the age is the smaller of the
two clocks' values: a wall clock that jumps forward makes nothing older, and one that jumps back only
makes it look younger, which deletes nothing. On another machine, or after a reboot, only the wall clock
counts.
"""

import functools
import os
import re
import socket
import time

from sandboxkit import _tags
from sandboxkit.types import SandboxInfo, SnapshotInfo

_HERE = re.compile(r"\d+-\d+-\d+")


def owner() -> str:
    """Return an identifier of this process by which another process can tell whether it is alive."""
    return _named(os.getpid())


def owner_here() -> str:
    """Return `owner()` without the boot, for names of what no boot outlives: pid, start time and namespace."""
    _, namespace, pid, started = owner().split(".")
    return f"{pid}-{started}-{namespace}"


def birth() -> str:
    """Return the boot id and the current time by both clocks, as one string."""
    since_boot, wall = _clocks()
    return f"{_boot()}.{since_boot:.0f}.{wall:.0f}"


def is_orphan(info: SandboxInfo) -> bool:
    """Return whether the sandbox's owner was a process of this machine that is gone."""
    owner = info.tags.get(_tags.OWNER, "")
    return _tags.DETACH not in info.tags and is_alive(owner) is False


def is_alive(owner: str) -> bool | None:
    """Return whether the process lives that `owner()` or `owner_here()` named.

    None for a process of another boot or pid namespace, of which nobody here can tell, and for other text.
    """
    if _HERE.fullmatch(owner):
        pid, started, namespace = owner.split("-")
        owner = f"{_boot()}.{namespace}.{pid}.{started}"
    boot, _, rest = owner.partition(".")
    namespace, _, process = rest.partition(".")
    pid, _, started = process.partition(".")
    if (boot, namespace) != (_boot(), _namespace()) or not pid.isdecimal():
        return None
    found = start_time(int(pid))
    return _exists(int(pid)) if found is None else str(found) == started


def start_time(pid: int) -> int | None:
    """Return a process's start time in ticks since boot; 0 for a zombie, None if it is gone or hidden."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return 0 if fields[0] in "ZX" else int(fields[19])


def is_expired(info: SandboxInfo | SnapshotInfo, *, soon: float = 0.0) -> bool:
    """Return whether the lifetime has passed, or will in `soon` s; renewals count if the backend reports them."""
    ends = info.expires_at
    expires = info.tags.get(_tags.EXPIRES) if ends is None else ends.timestamp()
    return expires is not None and float(expires) <= _now(info) + soon


def age(info: SandboxInfo | SnapshotInfo) -> float:
    """Return the age in seconds; 0 if the creation time is unknown."""
    return 0.0 if info.created_at is None else _now(info) - info.created_at.timestamp()


def _now(info: SandboxInfo | SnapshotInfo) -> float:
    """Return the wall-clock time, corrected if the clock jumped forward since the birth."""
    since_boot, wall = _clocks()
    boot, _, clocks = info.tags.get(_tags.BIRTH, "").partition(".")
    born, _, born_wall = clocks.partition(".")
    if boot != _boot() or not (born.isdecimal() and born_wall.isdecimal()):
        return wall
    counted = int(born_wall) + since_boot - int(born)
    return counted if wall > counted + 2 else wall  # birth tags hold whole seconds


def _clocks() -> tuple[float, float]:
    """Return the seconds since boot, including suspend, and the wall-clock time."""
    # macOS has no CLOCK_BOOTTIME; its monotonic clock includes suspend as well.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)), time.time()


@functools.cache
def _named(pid: int) -> str:
    return f"{_boot()}.{_namespace()}.{pid}.{start_time(pid) or 0}"


@functools.cache
def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().replace("-", "")[:16]
    except OSError:
        # macOS: reboots go unnoticed, so older sandboxes are removed only when they expire.
        return socket.gethostname().replace(".", "-")


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def _exists(pid: int) -> bool:
    # Called when /proc does not show the process: it is hidden, gone, or this is macOS.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
