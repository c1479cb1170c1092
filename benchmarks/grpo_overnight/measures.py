"""What is looked at while a trainer runs, and what one has left when it has ended."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

__all__ = ["disk_mb", "left", "looks", "parent"]

_CGROUPS = Path("/sys/fs/cgroup")


def looks(process: "subprocess.Popen[bytes]") -> dict[str, float]:
    """A process's memory in MiB, open descriptors, threads, and how many processes it has; or {}."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
        values = dict(line.split(":", 1) for line in status.splitlines())
        return {
            "rss_mb": int(values["VmRSS"].split()[0]) / 1024,
            "threads": int(values["Threads"]),
            "descriptors": len(os.listdir(f"/proc/{process.pid}/fd")),
            "children": sum(
                parent(int(name)) == process.pid for name in os.listdir("/proc") if name.isdigit()
            ),
        }
    except (OSError, KeyError):  # it is ending
        return {}


def parent(pid: int) -> int:
    """The parent of a process; 0 where it has gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def disk_mb(folder: Path) -> float:
    """Of all files below a folder."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                size += os.lstat(os.path.join(place, name)).st_blocks * 512
    return size / 2**20


def left(pid: int, sandboxes: Path, temporary: Path, mark: str) -> list[str]:
    """What the ended process `pid` has left: folders of sandboxes, temporary files, control groups,
    and processes with `mark` in their environment or the folder of sandboxes on their command line."""
    found = [f"state {path.name}" for path in sandboxes.iterdir()] if sandboxes.is_dir() else []
    found += [f"temporary file {path.name}" for path in temporary.iterdir()]
    for parent in (_CGROUPS / "sandboxkit", *_CGROUPS.glob("*/sandboxkit")):
        found += [f"cgroup {path}" for path in parent.glob(f"*{pid}-*") if _made_by(path, pid)]
    for other in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            told = Path(f"/proc/{other}/environ").read_bytes().split(b"\0")
            line = Path(f"/proc/{other}/cmdline").read_bytes()
            if mark.encode() in told or bytes(sandboxes) + b"/" in line:
                found.append(f"process {other} {line[:80].decode(errors='replace')}")
    return found


def _made_by(group: Path, pid: int) -> bool:
    return group.name.removeprefix("detached-").startswith(f"{pid}-")
