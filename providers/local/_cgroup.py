"""Limits on a whole sandbox through control groups, version 1 or 2, where we may make them."""

import errno
import functools
import os
import time
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PARENT = "sandboxkit"
_PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use."""

    memory_mb: int
    pids: int
    cpus: float | None


@functools.cache
def version() -> int:
    """1 or 2 where limits can be enforced on this machine by this user, else 0."""
    if os.geteuid() != 0:
        return 0
    try:
        if (_ROOT / "cgroup.controllers").exists():
            if not {"memory", "pids", "cpu"} <= set(
                (_ROOT / "cgroup.controllers").read_text().split()
            ):
                return 0
            (_ROOT / "cgroup.subtree_control").write_text("+memory +pids +cpu")
            (_ROOT / _PARENT).mkdir(exist_ok=True)
            (_ROOT / _PARENT / "cgroup.subtree_control").write_text("+memory +pids +cpu")
            return 2
        for controller in ("memory", "pids", "cpu"):
            if not (_ROOT / controller / "cgroup.procs").exists():
                return 0
            (_ROOT / controller / _PARENT).mkdir(exist_ok=True)
    except OSError:  # read-only or not delegated, as in most containers
        return 0
    return 1


def create(name: str, limits: Limits, pid: int) -> None:
    """Limit a process and all that it will start."""
    if version() == 2:
        group = _ROOT / _PARENT / name
        group.mkdir()
        (group / "memory.max").write_text(str(limits.memory_mb << 20))
        _write_if_there(group / "memory.swap.max", "0")
        (group / "pids.max").write_text(str(limits.pids))
        if limits.cpus is not None:
            (group / "cpu.max").write_text(f"{int(limits.cpus * _PERIOD_US)} {_PERIOD_US}")
        (group / "cgroup.procs").write_text(str(pid))
    elif version() == 1:
        memory, pids, cpu = (_ROOT / part / _PARENT / name for part in ("memory", "pids", "cpu"))
        for group in (memory, pids):
            group.mkdir()
        (memory / "memory.limit_in_bytes").write_text(str(limits.memory_mb << 20))
        _write_if_there(memory / "memory.memsw.limit_in_bytes", str(limits.memory_mb << 20))
        (pids / "pids.max").write_text(str(limits.pids))
        if limits.cpus is not None:
            cpu.mkdir()
            (cpu / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (cpu / "cpu.cfs_quota_us").write_text(str(int(limits.cpus * _PERIOD_US)))
            (cpu / "cgroup.procs").write_text(str(pid))
        for group in (memory, pids):
            (group / "cgroup.procs").write_text(str(pid))


def oom_killed(name: str) -> bool:
    """Whether the kernel killed a process of the group for memory."""
    path = (
        _ROOT / _PARENT / name / "memory.events"
        if version() == 2
        else _ROOT / "memory" / _PARENT / name / "memory.oom_control"
    )
    try:
        counters = dict(line.split() for line in path.read_text().splitlines())
    except FileNotFoundError:
        return False
    return int(counters.get("oom_kill", "0")) > 0


def remove(name: str, *, seconds: float = 5.0) -> None:
    """Remove the group of a sandbox whose processes have been killed."""
    if version() == 0:
        return
    parents = [_ROOT] if version() == 2 else [_ROOT / part for part in ("memory", "pids", "cpu")]
    deadline = time.monotonic() + seconds
    for parent in parents:
        while True:
            try:
                (parent / _PARENT / name).rmdir()
            except FileNotFoundError:
                pass
            except OSError as error:
                # Busy until the kernel has finished the last exits of its processes.
                if error.errno == errno.EBUSY and time.monotonic() < deadline:
                    time.sleep(0.001)
                    continue
                raise
            break


def names() -> list[str]:
    """All groups there are, those of dead sandboxes included."""
    parent = {0: None, 1: _ROOT / "pids" / _PARENT, 2: _ROOT / _PARENT}[version()]
    if parent is None:
        return []
    return sorted(path.name for path in parent.iterdir() if path.is_dir())


def _write_if_there(path: Path, text: str) -> None:
    if path.exists():
        path.write_text(text)
