"""Owners: which process has a sandbox, whether it lives, and how old the sandbox is.

Two marks are stored with each sandbox. The owner is named by the boot of its machine, its pid
namespace, its pid and its start time. Only a process of the same boot and namespace can say
that it is gone; everyone else takes it for alive. The birth is the machine's boot, the time
since that boot and the wall clock's time, all of the same moment. On the same boot, time has
passed only if both clocks say so: a wall clock that jumps forward makes no sandbox older, and
one that jumps back only makes it look younger, which deletes nothing. On another machine, or
after a reboot, the wall clock is all that there is.
"""

import functools
import os
import socket
import time

from sandboxkit import _tags
from sandboxkit.types import SandboxInfo


def owner() -> str:
    """Name this process so that another one can tell whether it still lives."""
    return _named(os.getpid())


def birth() -> str:
    """Name this moment by both clocks."""
    since_boot, wall = _clocks()
    return f"{_boot()}.{since_boot:.0f}.{wall:.0f}"


def is_orphan(info: SandboxInfo) -> bool:
    """Whether the sandbox belonged to a process of this machine that is gone."""
    boot, _, rest = info.tags.get(_tags.OWNER, "").partition(".")
    namespace, _, process = rest.partition(".")
    pid, _, started = process.partition(".")
    if _tags.DETACH in info.tags or (boot, namespace) != (_boot(), _namespace()):
        return False
    found = _start_time(int(pid)) if pid.isdecimal() else started
    return found != started and (found is not None or not _alive(int(pid)))


def is_expired(info: SandboxInfo) -> bool:
    """Whether the sandbox has outlived its lifetime, a renewed one where the backend tells it."""
    if info.expires_at is not None:
        return info.expires_at.timestamp() <= _now(info)
    expires = info.tags.get(_tags.EXPIRES)
    return expires is not None and float(expires) <= _now(info)


def age(info: SandboxInfo) -> float:
    """Seconds since it was made; 0 where nobody knows."""
    return 0.0 if info.created_at is None else _now(info) - info.created_at.timestamp()


def _now(info: SandboxInfo) -> float:
    """The wall clock's time, or less where it has run ahead since the sandbox was made."""
    since_boot, wall = _clocks()
    boot, _, clocks = info.tags.get(_tags.BIRTH, "").partition(".")
    born, _, born_wall = clocks.partition(".")
    if boot != _boot() or not (born.isdecimal() and born_wall.isdecimal()):
        return wall
    return min(wall, int(born_wall) + since_boot - int(born))


def _clocks() -> tuple[float, float]:
    """Seconds since the machine's boot, those asleep included, and the wall clock's time."""
    # macOS has no such name, and its monotonic clock counts them as well.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)), time.time()


@functools.cache
def _named(pid: int) -> str:
    return f"{_boot()}.{_namespace()}.{pid}.{_start_time(pid) or 0}"


@functools.cache
def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().replace("-", "")[:16]
    except OSError:
        # macOS: a reboot is not seen, and only the lifetime of what was before it tells.
        return socket.gethostname().replace(".", "-")


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def _start_time(pid: int) -> str | None:
    """Ticks since boot; "" for a zombie, None where nothing is to be seen of it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]


def _alive(pid: int) -> bool:
    # Where /proc shows nothing of it: hidden from us, or macOS, or gone.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
