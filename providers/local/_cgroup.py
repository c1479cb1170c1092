"""A sandbox's control groups, v1 and v2: limits, an equal share of the CPU, and usage counts."""

import errno
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sandboxkit.provider import is_alive, owner_here

_ROOT = Path("/sys/fs/cgroup")
_FOLDER = "sandboxkit"
_CPU_PERIOD_US = 100_000
_CONTROLLERS = ("memory", "pids", "cpu")
_COUNTER_V1 = "cpuacct"
"""The v1 controller that counts CPU time; v2 counts it in every group."""
_NAME = re.compile(r"(detached-)?(\d+-\d+-\d+)-local-[0-9a-f]{16}")
_DEFAULT_SHARES, _MOST_SHARES = 1024, 262_144
_MAKE_ATTEMPTS = 10
_REMOVE_PATIENCE = 2.0
"""Seconds for which a killed process may still count as a member after it was reaped."""


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """Resource limits of one sandbox; None means no limit."""

    memory_mb: int | None
    pids: int | None
    cpus: float | None


def _own_v1() -> dict[str, Path]:
    """Map each v1 controller to the folder of this process's group."""
    mounts: dict[str, Path] = {}
    roots: dict[str, str] = {}
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            tail = fields[fields.index("-") + 1 :]
            if tail[0] == "cgroup":
                for controller in tail[2].split(","):
                    mounts[controller] = Path(fields[4])
                    roots[controller] = fields[3]
    own: dict[str, Path] = {}
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, names, path = line.rstrip("\n").split(":", 2)
            for name in names.split(","):
                if name in mounts:
                    # Inside a container the mount shows only part of the hierarchy.
                    inner = path.removeprefix(roots[name].rstrip("/"))
                    folder = mounts[name] / inner.lstrip("/")
                    own[name] = folder if folder.is_dir() else mounts[name]
    return own


def _parent_v2() -> Path | None:
    """Return the nearest ancestor of our group in which we may create groups with controllers."""
    if not (_ROOT / "cgroup.controllers").exists():
        return None
    with open("/proc/self/cgroup") as file:
        own = next((line[3:].strip() for line in file if line.startswith("0::")), None)
    if own is None or ".." in own:
        return None
    group = _ROOT / own.lstrip("/")
    if group == _ROOT and os.access(group / "cgroup.procs", os.W_OK):
        there, given = (
            {*(group / f"cgroup.{name}").read_text().split()} & {*_CONTROLLERS}
            for name in ("controllers", "subtree_control")
        )
        # Before the first is given: children of a group with processes and "cpu" can take none of these. The
        # machine's own root, which has no type, gives all with processes.
        if there != given and (group / "cgroup.type").exists():
            _empty(group)
        return group if _enabled(group) else None
    # Start at the parent: a group that has processes cannot delegate controllers to children.
    while group != _ROOT and group.is_relative_to(_ROOT):
        group = group.parent
        if not os.access(group / "cgroup.procs", os.W_OK) or not os.access(group, os.W_OK):
            return None
        if _enabled(group):
            return group
    return None


def _enabled(group: Path) -> set[str]:
    control = group / "cgroup.subtree_control"
    for controller in _CONTROLLERS:
        with suppress(OSError):  # missing, not delegated, not ours, or the group has processes
            control.write_text(f"+{controller}")
    return set(control.read_text().split()) & set(_CONTROLLERS)


def _empty(group: Path) -> None:
    """Move the processes of a container to a child of its group, which can then have limited children.

    Images of docker-in-docker do the same.
    """
    child = group / "init"
    for _ in range(_MAKE_ATTEMPTS):
        child.mkdir(exist_ok=True)
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):  # it has ended
                _write(child, "cgroup.procs", pid)
        if not (group / "cgroup.procs").read_text():
            break  # no process was forked meanwhile


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    version: int
    parents: Mapping[str, Path]
    """Maps a controller to the folder in which a sandbox's group is created."""


@cache
def _hierarchy() -> _Hierarchy:
    own = _own_v1()
    v1 = {
        name: own[name]
        for name in (*_CONTROLLERS, _COUNTER_V1)
        if name in own and os.access(own[name], os.W_OK)
    }
    if v1:
        return _Hierarchy(1, {name: folder / _FOLDER for name, folder in v1.items()})
    parent = _parent_v2()
    if parent is None:
        return _Hierarchy(2, {})
    parent_of_ours = parent / _FOLDER
    found: set[str] = set()
    for _ in range(_MAKE_ATTEMPTS):
        try:
            parent_of_ours.mkdir(exist_ok=True)
            for controller in _enabled(parent):
                (parent_of_ours / "cgroup.subtree_control").write_text(f"+{controller}")
            found = set((parent_of_ours / "cgroup.subtree_control").read_text().split())
        except FileNotFoundError:
            continue  # another process's last sandbox has just ended and removed the folder
        except OSError:
            pass
        break
    return _Hierarchy(2, {name: parent_of_ours for name in _CONTROLLERS if name in found})


def takes_other_users() -> bool:
    """Whether a process with another uid than ours can be moved into our groups."""
    found = _hierarchy()
    # For those of version 1 the kernel asks for the uid of root, and for no capability.
    return os.geteuid() == 0 or found.version == 2 or not found.parents


def available() -> frozenset[str]:
    """Return the controllers that can limit a sandbox here, a subset of memory, pids and cpu."""
    return frozenset(_hierarchy().parents) & frozenset(_CONTROLLERS)


def _write(group: Path, name: str, value: object) -> None:
    with open(group / name, "w") as file:
        file.write(str(value))


def _fill_v1(controller: str, group: Path, limits: CgroupLimits) -> None:
    if controller == "memory" and limits.memory_mb is not None:
        size = limits.memory_mb << 20
        _write(group, "memory.limit_in_bytes", size)
        try:
            _write(group, "memory.memsw.limit_in_bytes", size)
        except FileNotFoundError:
            _write(group, "memory.swappiness", 0)  # the kernel does not count swap
    elif controller == "pids" and limits.pids is not None:
        _write(group, "pids.max", limits.pids)
    elif controller == "cpu" and limits.cpus is not None:
        _write(group, "cpu.cfs_period_us", _CPU_PERIOD_US)
        _write(group, "cpu.cfs_quota_us", int(limits.cpus * _CPU_PERIOD_US))


def _fill_v2(controllers: frozenset[str], group: Path, limits: CgroupLimits) -> None:
    if "memory" in controllers and limits.memory_mb is not None:
        _write(group, "memory.max", limits.memory_mb << 20)
        if (group / "memory.swap.max").exists():
            _write(group, "memory.swap.max", 0)
    if "pids" in controllers and limits.pids is not None:
        _write(group, "pids.max", limits.pids)
    if "cpu" in controllers and limits.cpus is not None:
        _write(group, "cpu.max", f"{int(limits.cpus * _CPU_PERIOD_US)} {_CPU_PERIOD_US}")


def plan(sandbox_id: str, limits: CgroupLimits, *, detached: bool) -> list[str]:
    """Return the folders of the groups that a sandbox needs, to be recorded before `create`.

    The names identify the maker, so that a sweep can tell which groups are abandoned.
    """
    name = f"{'detached-' if detached else ''}{owner_here()}-{sandbox_id}"
    return [str(parent / name) for parent in dict.fromkeys(_parents(limits).values())]


def _parents(limits: CgroupLimits) -> dict[str, Path]:
    # Controllers that are mounted together share one group.
    unwanted = {
        "memory": limits.memory_mb is None,
        "pids": limits.pids is None,
        # Even without a limit: in its own group a sandbox gets the same CPU weight as any other,
        # however many processes it starts.
        "cpu": False,
        _COUNTER_V1: False,
    }
    return {c: parent for c, parent in _hierarchy().parents.items() if not unwanted[c]}


def create(groups: list[str], limits: CgroupLimits) -> None:
    """Create the planned groups and set their limits. After a failure some of them may exist."""
    hierarchy = _hierarchy()
    for group in groups:
        _make(Path(group), hierarchy)
    if hierarchy.version == 2 and groups:
        _fill_v2(available(), Path(groups[0]), limits)
    elif hierarchy.version == 1:
        name = os.path.basename(groups[0]) if groups else ""
        for controller, parent in _parents(limits).items():
            _fill_v1(controller, parent / name, limits)


def _make(group: Path, hierarchy: _Hierarchy) -> None:
    for _ in range(_MAKE_ATTEMPTS):
        try:
            group.mkdir()
            return
        except FileNotFoundError:
            # Another process's last sandbox has just ended and removed the folder.
            try:
                group.parent.mkdir(exist_ok=True)
                if hierarchy.version == 1:
                    _share_v1(group.parent)
                else:
                    enable = " ".join(f"+{controller}" for controller in hierarchy.parents)
                    _write(group.parent, "cgroup.subtree_control", enable)
            except OSError as error:
                # The folder may be removed again before or while the file is written.
                if error.errno not in (errno.ENOENT, errno.ENODEV):
                    raise
    group.mkdir()


def _share_v1(parent: Path) -> None:
    """Give all sandboxes together the CPU weight of one host process per processor.

    On v1 the host's processes are not in sibling groups as on v2: each of them weighs as much as
    a whole group does on all processors together.
    """
    if (parent / "cpu.shares").exists():
        shares = min(_DEFAULT_SHARES * (os.cpu_count() or 1), _MOST_SHARES)
        _write(parent, "cpu.shares", shares)


def join(groups: list[str], pid: int) -> None:
    """Move a process into the groups; its future children inherit them."""
    for group in groups:
        _write(Path(group), "cgroup.procs", pid)


def kill_members(groups: list[str], patience: float = _REMOVE_PATIENCE) -> None:
    """SIGKILL all members of the groups until none is left or `patience` (s) is over."""
    deadline = time.monotonic() + patience
    while (found := _members(groups)) and time.monotonic() < deadline:
        _kill(found, groups)
        time.sleep(0.002)


def _kill(pids: set[int], groups: list[str]) -> None:
    pinned: dict[int, int] = {}
    for pid in pids:
        with suppress(ProcessLookupError):
            pinned[pid] = os.pidfd_open(pid)
    # Read again: a pid may have been reused before its pidfd was opened.
    still = _members(groups)
    for pid, pidfd in pinned.items():
        if pid in still:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


def _members(groups: list[str]) -> set[int]:
    found: set[int] = set()
    for group in groups:
        try:
            found.update(int(pid) for pid in Path(group, "cgroup.procs").read_text().split())
        except OSError:
            pass  # the group is gone
    # The kernel shows members of other pid namespaces as 0, which kill(2) takes for our own group.
    return found - {0}


def try_remove(groups: list[str]) -> list[str]:
    """Remove the groups that are empty; return those still in use."""
    busy = []
    for group in groups:
        try:
            os.rmdir(group)
        except FileNotFoundError:
            pass
        except OSError:
            busy.append(group)
    return busy


def remove(groups: list[str]) -> bool:
    """Remove the groups of dead processes; return whether all are gone.

    Retries for a while, because the kernel may still count dead processes as members.
    """
    deadline = time.monotonic() + _REMOVE_PATIENCE
    busy = groups
    while (busy := try_remove(busy)) and time.monotonic() < deadline:
        time.sleep(0.002)
    remove_parents(groups)
    return not busy


def remove_parents(groups: list[str]) -> None:
    """Remove the parent folders of these groups, unless another sandbox has a group there."""
    for parent in {os.path.dirname(group) for group in groups}:
        try:
            os.rmdir(parent)
        except OSError:
            pass  # in use, or gone


def abandoned() -> Iterator[tuple[bool, str]]:
    """Yield (detached, path) of every sandbox's group here whose maker is dead, whatever its state folder."""
    for parent in set(_hierarchy().parents.values()):
        try:
            names = os.listdir(parent)
        except OSError:
            continue  # no sandbox has a group now
        for name in names:
            match = _NAME.fullmatch(name)
            if match is not None and is_alive(match[2]) is False:
                yield match[1] is not None, str(parent / name)


def remove_unused_parents() -> None:
    """Remove the parent folders of sandboxes' groups, unless they contain a group."""
    for parent in set(_hierarchy().parents.values()):
        with suppress(OSError):
            os.rmdir(parent)
