"""What is known on the host about each local sandbox: one private folder for each, and its life."""

import json
import os
import re
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sandboxkit.errors import ConfigurationError
from sandboxkit.types import SandboxInfo, SandboxState

__all__ = ["Meta", "StateDir", "pinned", "start_time"]

_ID = re.compile(r"local-[0-9a-f]{16}")
_STARTING = re.compile(r"\.starting-(\d+)-(\d+)-local-[0-9a-f]{16}")
SOCKET = "agent.sock"
_META = "meta.json"
_GROUPS = "cgroups"


@dataclass(frozen=True, slots=True)
class Meta:
    """A running sandbox as its folder describes it; neither environment nor secrets are in it."""

    id: str
    tags: dict[str, str]
    image: str | None
    user: str
    created: float
    expires: float | None
    processes: dict[int, int]
    """Host pid to start time of the sandbox's monitor and of its PID 1."""
    cgroups: list[str] = field(default_factory=list)

    def alive(self) -> bool:
        """Whether any of its processes is left; a pid that was used again does not count."""
        return any(start_time(pid) == started for pid, started in self.processes.items())

    def info(self, provider: str) -> SandboxInfo:
        """The public description."""
        return SandboxInfo(
            id=self.id,
            provider=provider,
            state=SandboxState.RUNNING,
            tags=self.tags,
            image=self.image,
            created_at=datetime.fromtimestamp(self.created, UTC),
            expires_at=None if self.expires is None else datetime.fromtimestamp(self.expires, UTC),
        )


def start_time(pid: int) -> int | None:
    """When a process started, in ticks since boot; None if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in b"ZX" else int(fields[19])


def pinned(pid: int, started: int) -> int | None:
    """A pidfd of exactly that process, or None if it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if start_time(pid) == started:
        return pidfd
    os.close(pidfd)
    return None


def kill(pidfd: int) -> None:
    """SIGKILL for a pinned process; one that is gone already is no error."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _private_folder() -> Path:
    chosen = os.environ.get("SANDBOXKIT_STATE_DIR")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if chosen:
        path = Path(chosen).absolute()
    elif os.geteuid() == 0 and os.access("/run", os.W_OK):
        path = Path("/run/sandboxkit")
    elif runtime and os.access(runtime, os.W_OK):
        path = Path(runtime, "sandboxkit")
    else:
        path = Path(tempfile.gettempdir(), f"sandboxkit-{os.geteuid()}")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ConfigurationError(
            f"the state folder {path} cannot be made: {error}; set SANDBOXKIT_STATE_DIR",
            provider="local",
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        # Somebody else could read sandboxes' sockets there, or put their own in our way.
        raise ConfigurationError(
            f"the state folder {path} must be a folder of uid {os.geteuid()} with mode 0700; "
            "remove it or set SANDBOXKIT_STATE_DIR",
            provider="local",
        )
    return path


class StateDir:
    """The folder of one user's sandboxes. Made when it is first needed."""

    def __init__(self) -> None:
        self._path: Path | None = None

    @property
    def path(self) -> Path:
        """Where it is. Raises ConfigurationError where it cannot be trusted."""
        if self._path is None or not self._path.exists():
            self._path = _private_folder()
        return self._path

    def begin(self, sandbox_id: str) -> Path:
        """A folder for a sandbox that is being made, named for the process that makes it."""
        pid = os.getpid()
        folder = self.path / f".starting-{pid}-{start_time(pid)}-{sandbox_id}"
        folder.mkdir(mode=0o700)
        return folder

    def note_groups(self, folder: Path, groups: list[str]) -> None:
        """Say which control groups a sandbox that is being made has, for whoever must remove it."""
        (folder / _GROUPS).write_text("\n".join(groups))

    def publish(self, folder: Path, meta: Meta) -> None:
        """The sandbox is running: from now on it is listed."""
        (folder / _META).write_text(json.dumps(asdict(meta)))
        folder.rename(self.path / meta.id)

    def update(self, meta: Meta) -> None:
        """Replace what is known about a running sandbox."""
        folder = self.path / meta.id
        temporary = folder / f"{_META}.{os.getpid()}"
        temporary.write_text(json.dumps(asdict(meta)))
        temporary.rename(folder / _META)

    def load(self, sandbox_id: str) -> Meta | None:
        """One sandbox's description, whether it is alive or not; None if there is none."""
        if not _ID.fullmatch(sandbox_id):
            return None
        try:
            known = json.loads((self.path / sandbox_id / _META).read_bytes())
        except FileNotFoundError:
            return None
        known["processes"] = {int(pid): start for pid, start in known["processes"].items()}
        return Meta(**known)

    def __iter__(self) -> Iterator[Meta]:
        for entry in sorted(os.listdir(self.path)):
            meta = self.load(entry)
            if meta is not None:
                yield meta

    def abandoned(self) -> Iterator[tuple[Path, list[str]]]:
        """Folders and control groups of sandboxes whose maker died before they ran."""
        for entry in os.listdir(self.path):
            match = _STARTING.fullmatch(entry)
            if match and start_time(int(match[1])) != int(match[2]):
                folder = self.path / entry
                groups = folder / _GROUPS
                yield folder, groups.read_text().splitlines() if groups.exists() else []

    def remove(self, folder: Path) -> None:
        """Remove a sandbox's folder. Idempotent."""
        shutil.rmtree(folder, ignore_errors=True)

    def folder(self, sandbox_id: str) -> Path:
        """Where a published sandbox's folder is, if it exists."""
        return self.path / sandbox_id
