"""Starts that wait for room too long, published so that other processes can show them."""

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from sandboxkit._life._locks import PathLock, remove_unlocked
from sandboxkit._life._state_folder import state_folder
from sandboxkit.errors import ConfigurationError

_log = logging.getLogger("sandboxkit")
_PREFIX = "waiting-"


class Wait:
    """The message of one session about its waiting starts: a file in the user's state folder, locked meanwhile.

    An error of the state folder is only logged: it must not stop a session.
    """

    def __init__(self, session: str) -> None:
        self._name = f"{_PREFIX}{session}"
        self._lock: PathLock | None = None
        self._path: Path | None = None

    def publish(self, text: str) -> None:
        """Replace the session's message."""
        try:
            if self._lock is None:
                self._path = state_folder() / self._name
                self._lock = PathLock.take(self._path, create=True)
            if self._lock is not None:
                self._lock.write(f"process {os.getpid()}: {text}")
        except (OSError, ConfigurationError) as error:
            _log.debug("a wait for room could not be published: %s", error)

    def withdraw(self) -> None:
        """Remove the message, if there is one."""
        lock, self._lock = self._lock, None
        if lock is None or self._path is None:
            return
        with lock:
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                _log.debug("the message about a wait for room could not be removed: %s", error)


def published() -> Iterator[str]:
    """Yield the message of each session of this user that waits for room; remove those of killed processes."""
    for path in remove_unlocked(sorted(state_folder().glob(f"{_PREFIX}*"))):
        with suppress(FileNotFoundError):  # withdrawn meanwhile
            yield path.read_text(encoding="utf-8", errors="replace")
