"""Measures which programs use this machine's processors; a round in which others did is not counted.

What is ours is found by an environment variable that all our processes inherit; what Docker's daemon
and its containers use counts as ours, too, since a benchmark makes them work.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

MARKER = "SANDBOXKIT_BENCH"
_DOCKER = ("dockerd", "containerd", "docker-proxy", "docker-init", "runc")
_KTHREADD = 2
_HZ = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """A line of /proc/PID/stat: when it started, its parent and what it and its dead children used."""

    started: int
    parent: int
    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The processor time that others have used until now, and what the hypervisor has taken."""

    at: float
    others: dict[int, Process]
    stolen: float


def snapshot(marker: str, own: int | None = None, proc: Path = Path("/proc")) -> Snapshot:
    """Look at all processes; `marker` is the value of the variable in ours.

    `own` is ours without it, and so are its children: this process, which set the variable.
    """
    table = {
        int(path.name): found
        for path in proc.glob("[0-9]*")
        if (found := _process(path)) is not None
    }
    ours: dict[int, bool] = {0: False, _KTHREADD: True}
    if own is not None:
        ours[own] = True
    wanted = f"{MARKER}={marker}".encode()

    def is_ours(pid: int) -> bool:
        if pid not in ours:
            process = table.get(pid)
            ours[pid] = process is not None and (
                process.name.startswith(_DOCKER)
                or (process.parent > 1 and is_ours(process.parent))
                or process.parent == _KTHREADD
                or wanted in _environment(proc / str(pid))
            )
        return ours[pid]

    others = {pid: process for pid, process in table.items() if not is_ours(pid)}
    return Snapshot(time.monotonic(), others, _stolen(proc))


def busy(before: Snapshot, after: Snapshot, processors: int = os.cpu_count() or 1) -> float:
    """The share of the machine that others and the hypervisor took between two snapshots."""
    used = after.stolen - before.stolen
    for pid, process in after.others.items():
        earlier = before.others.get(pid)
        same = earlier is not None and earlier.started == process.started
        used += process.seconds - (earlier.seconds if same and earlier is not None else 0.0)
    for pid, process in before.others.items():
        later = after.others.get(pid)
        gone = later is None or later.started != process.started
        if gone and process.parent > 1 and process.parent in after.others:
            used -= process.seconds  # its parent's sum has it now, with what was known before
    return max(0.0, used) / max(1e-9, (after.at - before.at) * processors)


def _process(folder: Path) -> Process | None:
    try:
        name, _, rest = folder.joinpath("stat").read_text().partition("(")[2].rpartition(")")
    except OSError:
        return None
    fields = rest.split()
    used = [int(ticks) for ticks in fields[11:15]]
    if folder.name == "1":
        used = used[:2]  # its dead children are everybody's orphans
    return Process(int(fields[19]), int(fields[1]), name, sum(used) / _HZ)


def _environment(folder: Path) -> bytes:
    try:
        return folder.joinpath("environ").read_bytes()
    except OSError:
        return b""


def _stolen(proc: Path) -> float:
    fields = proc.joinpath("stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / _HZ
