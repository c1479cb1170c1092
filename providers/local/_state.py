"""What is known on the host about each local sandbox: one private folder for each, and its life."""

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path

from sandboxkit.errors import CapacityError, ConfigurationError, SandboxStartError
from sandboxkit.types import SandboxInfo, SandboxState

__all__ = ["Maker", "Meta", "StateDir", "kill", "pinned", "start_time"]

_ID = re.compile(r"local-[0-9a-f]{16}")
_STARTING = re.compile(r"\.starting-(\d+-\d+-\d+)-(local-[0-9a-f]{16})")
SOCKET = "agent.sock"
_META = "meta.json"
_GROUPS = "cgroups"


@dataclass(frozen=True, slots=True)
class Maker:
    """The process that makes a sandbox, as another one can recognise it."""

    pid: int
    started: int
    namespace: int
    """That of its pids: containers may share a state folder, and count differently."""

    @classmethod
    def me(cls) -> "Maker":
        """This process."""
        pid = os.getpid()
        return cls(pid, start_time(pid) or 0, _namespace())

    @classmethod
    def parse(cls, text: str) -> "Maker":
        """What `str` made."""
        return cls(*(int(field) for field in text.split("-")))

    def __str__(self) -> str:
        return f"{self.pid}-{self.started}-{self.namespace}"

    @property
    def is_here(self) -> bool:
        """Whether its pid, and those of the sandboxes it makes, mean here what they mean there."""
        return self.namespace == _namespace()

    def alive(self) -> bool:
        """Whether it still runs. Only where it `is_here`."""
        return start_time(self.pid) == self.started


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


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
    maker: str = "0-0-0"
    detached: bool = False

    @property
    def is_here(self) -> bool:
        """Whether its pids are pids here."""
        return Maker.parse(self.maker).is_here

    @property
    def owned(self) -> bool:
        """Whether a process here still owns it, which then clears away what is left of it."""
        maker = Maker.parse(self.maker)
        return not self.detached and maker.is_here and maker.alive()

    @property
    def orphaned(self) -> bool:
        """Whether it should have ended with its owner."""
        maker = Maker.parse(self.maker)
        return not self.detached and maker.is_here and not maker.alive()

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


_FIELDS = frozenset(field.name for field in fields(Meta))


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Errors of the disk on which the folder lies become ours."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind = CapacityError if full else SandboxStartError
        raise kind(
            f"the state folder {folder} cannot be written: {error.strerror}; make room there, or "
            "set SANDBOXKIT_STATE_DIR",
            provider="local",
        ) from error


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

    def begin(self) -> "Begun":
        """A new sandbox's id, and a folder that is named for the process that makes it."""
        with _writing(self.path):
            while True:
                folder = self.path / f".starting-{Maker.me()}-local-{secrets.token_hex(8)}"
                folder.mkdir(mode=0o700)
                lock = _locked(folder)
                # None: another container's sweep came in between, and takes the folder away.
                if lock is not None:
                    return Begun(folder, lock)

    def publish(self, begun: "Begun", meta: Meta) -> None:
        """The sandbox is running: from now on it is listed."""
        with _writing(self.path):
            (begun.folder / _META).write_text(json.dumps(asdict(meta)))
            begun.folder.rename(self.path / meta.id)
        begun.close()

    def update(self, meta: Meta) -> None:
        """Replace what is known about a running sandbox. Raises OSError."""
        folder = self.path / meta.id
        temporary = folder / f"{_META}.{os.getpid()}"
        try:
            temporary.write_text(json.dumps(asdict(meta)))
            temporary.rename(folder / _META)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def load(self, sandbox_id: str) -> Meta | None:
        """One sandbox's description, whether it is alive or not; None if there is none."""
        if not _ID.fullmatch(sandbox_id):
            return None
        try:
            known = json.loads((self.path / sandbox_id / _META).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:  # a machine that lost its power may leave half of it
            known = {"id": sandbox_id, "tags": {}, "image": None, "user": "", "processes": {}}
            known |= {"created": 0.0, "expires": None}
        known["processes"] = {int(pid): start for pid, start in known["processes"].items()}
        # Another version of this package may have written it.
        return Meta(**{name: value for name, value in known.items() if name in _FIELDS})

    def alive(self, meta: Meta) -> bool:
        """Whether a sandbox still runs.

        Where its pids mean nothing its socket tells, which nobody but its agent listens on.
        """
        if meta.is_here:
            # A pid that was used again does not count.
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
            return True  # more clients than it takes at once
        finally:
            os.close(place)
        return True

    def __iter__(self) -> Iterator[Meta]:
        for entry in sorted(os.listdir(self.path)):
            meta = self.load(entry)
            if meta is not None:
                yield meta

    def abandoned(self) -> "Iterator[Begun]":
        """The folders of sandboxes whose maker died before they ran; to be closed."""
        for entry in os.listdir(self.path):
            match = _STARTING.fullmatch(entry)
            if match is None:
                continue
            maker = Maker.parse(match[1])
            if maker.is_here and maker.alive():
                continue
            # A forked child of a dead maker may still hold the lock: here that counts for nothing.
            lock = _locked(self.path / entry)
            if lock is not None or maker.is_here:
                yield Begun(self.path / entry, lock)

    def remove(self, folder: Path) -> None:
        """Remove a sandbox's folder. Idempotent."""
        shutil.rmtree(folder, ignore_errors=True)

    def folder(self, sandbox_id: str) -> Path:
        """Where a published sandbox's folder is, if it exists."""
        return self.path / sandbox_id


class Begun:
    """The folder of a sandbox that is being made, locked as long as its maker lives."""

    def __init__(self, folder: Path, lock: int | None) -> None:
        self.folder = folder
        self._lock = lock

    @property
    def sandbox_id(self) -> str:
        """What the sandbox would be called."""
        return self.folder.name[-len("local-0123456789abcdef") :]

    def note_groups(self, groups: list[str]) -> None:
        """Say which control groups it is going to have, for whoever must remove it."""
        with _writing(self.folder):
            (self.folder / _GROUPS).write_text("\n".join(groups))

    def groups(self) -> list[str]:
        """What was noted."""
        try:
            return (self.folder / _GROUPS).read_text().splitlines()
        except FileNotFoundError:
            return []

    def close(self) -> None:
        """Give up the lock. Idempotent."""
        if self._lock is not None:
            # In so many words: the descriptor of a forked child would hold it on.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None


def _locked(folder: Path) -> int | None:
    """A lock on this very folder; None if somebody else has it, or it is gone."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(folder)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    return None
