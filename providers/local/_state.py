"""The state folder: a private folder for each local sandbox, with its metadata and socket."""

import errno
import json
import os
import re
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from sandboxkit.errors import CapacityError, SandboxStartError
from sandboxkit.provider import PathLock, is_alive, owner_here, start_time, state_folder
from sandboxkit.providers.local._folders import remove_tree
from sandboxkit.types import SandboxInfo, SandboxState

_ID = re.compile(r"local-[0-9a-f]{16}")
_STARTING = re.compile(r"\.starting-(\d+-\d+-\d+)-local-[0-9a-f]{16}")
SOCKET = "agent.sock"
_META = "meta.json"
_GROUPS = "cgroups"
_WORK = "work"


@dataclass(frozen=True, slots=True)
class UsedImage:
    """The image of a sandbox as it was at its start; the name alone may mean another one later."""

    reference: str
    """The absolute path, or the name in a registry."""
    root: str
    """The folder with its files."""
    version: str


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """A running sandbox's metadata, as stored in its folder, without environment and secrets."""

    id: str
    tags: dict[str, str]
    image: str | None
    user: str
    created: float
    expires: float | None
    processes: dict[int, int]
    """Maps the host pids of the sandbox's monitor and PID 1 to their start times."""
    cgroups: list[str] = field(default_factory=list)
    maker: str = "0-0-0"
    detached: bool = False
    datasets: list[str] = field(default_factory=list)
    """Digests of the datasets that it mounts."""
    volumes: list[str] = field(default_factory=list)
    """Names of the volumes that it mounts."""
    snapshot: str | None = None
    """The id of the snapshot from which it started."""
    folders: list[str] = field(default_factory=list)
    """The folders that a snapshot of it keeps."""
    paused: bool = False
    isolation: Literal["namespaces", "landlock", "gvisor"] | None = None
    used_image: UsedImage | None = None
    """None without an image, and in records of older versions of this package."""

    @property
    def is_here(self) -> bool:
        """Whether its pids are valid in this pid namespace."""
        return is_alive(self.maker) is not None

    @property
    def owned(self) -> bool:
        """Whether a live process of this pid namespace owns it, and will clean up after it."""
        return not self.detached and is_alive(self.maker) is True

    @property
    def orphaned(self) -> bool:
        """Whether its owner is dead, so that it should have ended, too."""
        return not self.detached and is_alive(self.maker) is False

    def info(self, provider: str) -> SandboxInfo:
        """Return the public description."""
        return SandboxInfo(
            id=self.id,
            provider=provider,
            state=SandboxState.PAUSED if self.paused else SandboxState.RUNNING,
            tags=self.tags,
            image=self.image,
            created_at=datetime.fromtimestamp(self.created, UTC),
            expires_at=None if self.expires is None else datetime.fromtimestamp(self.expires, UTC),
        )


def pinned(pid: int, started: int) -> int | None:
    """Open a pidfd of the process with this pid and start time; None if it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if start_time(pid) == started:
        return pidfd
    os.close(pidfd)
    return None


def kill(pidfd: int) -> None:
    """Send SIGKILL through a pidfd; a process that is already gone is no error."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass


_FIELDS = frozenset(field.name for field in fields(SandboxRecord))


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Translate an OSError from writing to the folder.

    Raises CapacityError if the disk is full, otherwise SandboxStartError.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind = CapacityError if full else SandboxStartError
        raise kind(
            f"the state folder {folder} cannot be written: {error.strerror}; free space there, or set "
            "SANDBOXKIT_STATE_DIR"
        ) from error


class StateDir:
    """The state folder of one user's sandboxes, created on first use."""

    def __init__(self) -> None:
        self._path: Path | None = None

    @property
    def path(self) -> Path:
        """Return the folder's path. Raises ConfigurationError if the folder cannot be trusted."""
        if self._path is None or not self._path.exists():
            self._path = state_folder()
        return self._path

    def begin(self) -> "SandboxFolder":
        """Create a locked folder for a new sandbox, named after its maker and the new id."""
        with _writing(self.path):
            while True:
                folder = self.path / f".starting-{owner_here()}-local-{secrets.token_hex(8)}"
                folder.mkdir(mode=0o700)
                lock = PathLock.take(folder)
                # None: a sweep locked the folder first, and removes it.
                if lock is not None:
                    return SandboxFolder(folder, lock)

    def publish(self, begun: "SandboxFolder", meta: SandboxRecord) -> None:
        """Store a running sandbox's metadata and rename its folder to its id, so that it is listed."""
        with _writing(self.path):
            (begun.folder / _META).write_text(json.dumps(asdict(meta)))
            begun.folder.rename(self.path / meta.id)
        begun.close()

    def update(self, meta: SandboxRecord) -> None:
        """Atomically replace a running sandbox's metadata. Raises OSError."""
        folder = self.path / meta.id
        temporary = folder / f"{_META}.{os.getpid()}"
        try:
            temporary.write_text(json.dumps(asdict(meta)))
            temporary.rename(folder / _META)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def load(self, sandbox_id: str) -> SandboxRecord | None:
        """Return one sandbox's metadata, whether it is alive or not; None if there is none."""
        if not _ID.fullmatch(sandbox_id):
            return None
        try:
            known = json.loads((self.path / sandbox_id / _META).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:  # a power failure may leave a truncated file
            known = {"id": sandbox_id, "tags": {}, "image": None, "user": "", "processes": {}}
            known |= {"created": 0.0, "expires": None}
        known["processes"] = {int(pid): start for pid, start in known["processes"].items()}
        if (used := known.get("used_image")) is not None:
            known["used_image"] = UsedImage(**used)
        # Another version of this package may have written other fields.
        return SandboxRecord(**{name: value for name, value in known.items() if name in _FIELDS})

    def alive(self, meta: SandboxRecord) -> bool:
        """Whether a sandbox still runs.

        In another pid namespace, whether its socket, on which only its agent listens, accepts.
        """
        if meta.is_here:
            # The start time tells a reused pid.
            return any(start_time(pid) == started for pid, started in meta.processes.items())
        return self._answers(meta.id)

    def _answers(self, sandbox_id: str) -> bool:
        try:
            place = os.open(self.path / sandbox_id, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            with socket.socket(socket.AF_UNIX) as knock:
                knock.setblocking(False)
                knock.connect(f"/proc/self/fd/{place}/{SOCKET}")
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:
            return True  # its queue of connections is full
        finally:
            os.close(place)
        return True

    def __iter__(self) -> Iterator[SandboxRecord]:
        for entry in sorted(os.listdir(self.path)):
            meta = self.load(entry)
            if meta is not None:
                yield meta

    def abandoned(self) -> "Iterator[SandboxFolder]":
        """Yield folders of sandboxes whose maker died before they ran. The caller closes them."""
        for entry in os.listdir(self.path):
            match = _STARTING.fullmatch(entry)
            alive = True if match is None else is_alive(match[1])
            if alive is True:
                continue
            # A forked child of a dead maker may still hold the lock; that counts only across namespaces.
            lock = PathLock.take(self.path / entry)
            if lock is not None or alive is False:
                yield SandboxFolder(self.path / entry, lock)

    def cut_short(self) -> Iterator[Path]:
        """Yield folders without metadata, whose removal was cut short. A sandbox is published with its own."""
        for entry in os.listdir(self.path):
            if _ID.fullmatch(entry) and not (self.path / entry / _META).exists():
                yield self.path / entry

    def has_work(self, folder: Path) -> bool:
        """Whether a sandbox has files of its programs that `remove` removes."""
        return (folder / _WORK).exists()

    def remove(self, folder: Path) -> None:
        """Remove a sandbox's folder. Idempotent. If this process is killed meanwhile, see `cut_short`."""
        with suppress(OSError):
            remove_tree(Path((folder / _WORK).read_text()))
        shutil.rmtree(folder, ignore_errors=True)

    def folder(self, sandbox_id: str) -> Path:
        """Return the path of a published sandbox's folder, which may not exist."""
        return self.path / sandbox_id


class SandboxFolder:
    """The folder of a sandbox that is being created, locked while its maker lives."""

    def __init__(self, folder: Path, lock: PathLock | None) -> None:
        self.folder = folder
        self._lock = lock

    @property
    def sandbox_id(self) -> str:
        """The id of the sandbox."""
        return self.folder.name[-len("local-0123456789abcdef") :]

    def note_groups(self, groups: list[str]) -> None:
        """Record the sandbox's planned control groups, so that a sweep can remove them."""
        with _writing(self.folder):
            (self.folder / _GROUPS).write_text("\n".join(groups))

    def make_work(self, uid: int | None) -> Path:
        """Make the folders of a sandbox without mounts, for its files; `uid` owns them, or None for our user.

        They are below TMPDIR, which the user of the sandbox must be able to reach.
        """
        work = Path(tempfile.gettempdir()).resolve() / f"sandboxkit-{self.sandbox_id}"
        with _writing(self.folder):
            (self.folder / _WORK).write_text(str(work))
        with _writing(work.parent):
            work.mkdir(mode=0o700)
            for name in ("workspace", "tmp"):
                (work / name).mkdir(mode=0o700)
                if uid is not None:
                    os.chown(work / name, uid, uid)
            work.chmod(0o700 if uid is None else 0o711)
        return work

    def groups(self) -> list[str]:
        """Return the recorded control groups; empty if none were recorded."""
        try:
            return (self.folder / _GROUPS).read_text().splitlines()
        except FileNotFoundError:
            return []

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._lock is not None:
            self._lock.release()
