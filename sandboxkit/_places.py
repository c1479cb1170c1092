"""Places: a cap on live sandboxes that all processes of a user on this machine share."""

import fcntl
import os
import random
import stat
from pathlib import Path

import anyio

from sandboxkit.errors import ConfigurationError

_POLL_SECONDS = 0.01, 0.05
"""Random, so that no process is always the first to see a place that got free."""
_WAITING = 1 << 40
"""The byte, beyond all places, on which those who wait have a shared lock."""


class Places:
    """The first `limit` places of one backend; used on the background loop only.

    Each is a record lock on one byte of a file. The kernel drops those of a process that dies,
    and a forked child has none. Processes should agree on the number: one with a larger limit
    takes places that one with a smaller limit does not look at.
    """

    def __init__(self, backend: str, limit: int) -> None:
        self._backend, self._limit = backend, limit
        self._line = anyio.Lock()

    async def take(self) -> int:
        """Wait for a place, behind those of this object that came before. Cancelled: none."""
        async with self._line:
            if (place := _held(self._backend).lock(self._limit)) is not None:
                return place
            held = _held(self._backend)
            held.waiting += 1
            try:
                # Other processes' places: nothing in this one hears when they get free.
                while (place := held.lock(self._limit)) is None:
                    held.say_waiting()
                    await anyio.sleep(random.uniform(*_POLL_SECONDS))
                return place
            finally:
                held.waiting -= 1
                held.say_waiting()

    def take_now(self) -> int | None:
        """Take a place that is free, and for which none of this object waits."""
        return None if self._line.locked() else _held(self._backend).lock(self._limit)

    def wanted(self) -> bool:
        """Whether anybody else waits for a place, in this process or another."""
        held = _held(self._backend)
        return held.waiting > self._line.locked() or held.others_wait()

    def leave(self, place: int) -> None:
        """Make room for another sandbox, of whichever process."""
        _held(self._backend).unlock(place)


class _Held:
    """What this process holds of one backend's places."""

    def __init__(self, backend: str) -> None:
        path = _private_folder() / f"live-{backend.replace('/', '_')}"
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(path, flags, 0o600)
        except OSError as error:
            raise ConfigurationError(
                f"max_live needs the file {path}: {error}; set SANDBOXKIT_STATE_DIR"
            ) from error
        # A lock is the process's: it does not keep the process's own sandboxes apart.
        self._places: set[int] = set()
        self.waiting = 0
        self._said = False

    def lock(self, limit: int) -> int | None:
        """Take the first free place, None where there is none."""
        for place in range(limit):
            if place in self._places:
                continue
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except (BlockingIOError, PermissionError):
                continue  # another process's; POSIX allows either error
            self._places.add(place)
            return place
        return None

    def unlock(self, place: int) -> None:
        """Give a place back."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)
        self._places.discard(place)

    def say_waiting(self) -> None:
        """Let other processes know whether anybody waits here. They may be asking just now: it
        is said again as long as it is so."""
        if self.waiting and not self._said:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, _WAITING)
                self._said = True
            except (BlockingIOError, PermissionError):
                pass
        elif not self.waiting and self._said:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _WAITING)
            self._said = False

    def others_wait(self) -> bool:
        """Whether somebody waits in another process."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _WAITING)
        except (BlockingIOError, PermissionError):
            return True
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _WAITING)
        self._said = False
        self.say_waiting()
        return False

    def close(self) -> None:
        """Leave the file to the process that was forked; the child never had its locks."""
        os.close(self._file)


# Each file is opened once: closing any descriptor of it drops all of the process's locks on it.
_files: dict[str, _Held] = {}


def _held(backend: str) -> _Held:
    if backend not in _files:
        _files[backend] = _Held(backend)
    return _files[backend]


def _forget() -> None:
    for held in _files.values():
        held.close()
    _files.clear()


os.register_at_fork(after_in_child=_forget)


def _private_folder() -> Path:
    # The same for every process of the user, however it was started: neither TMPDIR nor
    # XDG_RUNTIME_DIR is.
    uid = os.geteuid()
    chosen = os.environ.get("SANDBOXKIT_STATE_DIR")
    runtime = Path("/run") if uid == 0 else Path(f"/run/user/{uid}")
    if chosen:
        path = Path(chosen).absolute()
    elif os.access(runtime, os.W_OK):
        path = runtime / "sandboxkit"
    else:
        path = Path(f"/tmp/sandboxkit-{uid}")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ConfigurationError(
            f"max_live needs the folder {path}: {error}; set SANDBOXKIT_STATE_DIR"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise ConfigurationError(
            f"the folder {path}, which max_live needs, must be one of uid {uid} with mode 0700; "
            "remove it or set SANDBOXKIT_STATE_DIR"
        )
    return path
