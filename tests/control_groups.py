"""The processes of a local sandbox, by its control group; others' come and go meanwhile."""

import os
from pathlib import Path

_STARTED = 19
"""Where a process's /proc/PID/stat has its start, counted after the name."""


def processes_of(sandbox_id: str) -> list[int]:
    """Parents before their children: bubblewrap, the agent, and what that has started."""
    for folder, _, _ in os.walk("/sys/fs/cgroup/pids"):
        if folder.endswith(sandbox_id):
            pids = map(int, Path(folder, "cgroup.procs").read_text().split())
            return [pid for _, pid in sorted((_age(pid), pid) for pid in pids)]
    raise AssertionError(f"{sandbox_id} has no control group")


def _age(pid: int) -> tuple[int, int]:
    """When it started, and how far below the others: numbers are used again, and ticks are long."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        depth, above = 0, pid
        while above > 1 and depth < 8:
            stat = Path(f"/proc/{above}/stat").read_text().rpartition(") ")[2].split()
            depth, above = depth + 1, int(stat[1])
    except OSError:
        return (1 << 62, 0)  # it has just ended, or one above it
    return int(fields[_STARTED]), depth
