"""What this machine remembers of its local sandboxes: one folder each, read by any process."""

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sandboxkit.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Record:
    """One sandbox, as written to its `meta.json`. It holds no secrets."""

    id: str
    pid: int
    """PID 1 of the sandbox, in this machine's numbering."""
    started: str
    """When that process started, in clock ticks: tells it from a later one with the same pid."""
    created: float
    expires: float | None
    image: str | None
    tags: dict[str, str]

    @property
    def alive(self) -> bool:
        """Whether the sandbox still runs."""
        return start_time(self.pid) == self.started


def folder() -> Path:
    """The folder of this user's sandboxes: SANDBOXKIT_STATE_DIR, else in the runtime directory."""
    chosen = os.environ.get("SANDBOXKIT_STATE_DIR")
    if chosen:
        path = Path(chosen)
    elif os.geteuid() == 0:
        path = Path("/run/sandboxkit")
    elif runtime := os.environ.get("XDG_RUNTIME_DIR"):
        path = Path(runtime) / "sandboxkit"
    else:
        path = Path(f"/tmp/sandboxkit-{os.geteuid()}")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise ConfigurationError(
            f"{path} must be a folder of yours with mode 0700; "
            "remove it or set SANDBOXKIT_STATE_DIR to another one"
        )
    return path


def write(record: Record) -> None:
    """Make the sandbox visible to every process of this user."""
    path = folder() / record.id
    temporary = path / "meta.json.new"
    temporary.write_text(json.dumps(asdict(record)))
    temporary.rename(path / "meta.json")


def read(sandbox_id: str) -> Record | None:
    """The sandbox's record, or None if there is none."""
    if "/" in sandbox_id or sandbox_id in ("", ".", ".."):
        return None
    try:
        return Record(**json.loads((folder() / sandbox_id / "meta.json").read_text()))
    except FileNotFoundError:
        return None


def records() -> Iterator[Record]:
    """Every record, those of dead sandboxes included."""
    for name in sorted(os.listdir(folder())):
        record = read(name)
        if record is not None:
            yield record


def remove(sandbox_id: str) -> None:
    """Forget a sandbox."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder() / sandbox_id)


def start_time(pid: int) -> str:
    """When a process started, in clock ticks since boot; "" if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] == "Z" else fields[19]
