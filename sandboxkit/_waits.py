"""Starts that wait for room too long, published so that other processes can show them."""

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from sandboxkit import _owners
from sandboxkit._state_folder import state_folder
from sandboxkit.errors import ConfigurationError

_log = logging.getLogger("sandboxkit")
_PREFIX = "waiting-"
_STALE_SECONDS = 600.0
"""Age from which a message is removed: a session rewrites its message every few seconds."""


class Wait:
    """The message of one session about its waiting starts: a file in the user's state folder.

    An error of the state folder is only logged: it must not stop a session.
    """

    def __init__(self, session: str) -> None:
        self._name = f"{_PREFIX}{_owners.owner()}.{session}"
        self._path: Path | None = None

    def publish(self, text: str) -> None:
        """Replace the session's message."""
        try:
            if self._path is None:
                list(published())  # removes what killed processes left
            path = state_folder() / self._name
            part = path.with_suffix(".part")
            text = f"process {os.getpid()}: {text}"
            part.write_text(text, encoding="utf-8", errors="backslashreplace")
            self._path = part.replace(path)
        except (OSError, ConfigurationError) as error:
            _log.debug("a wait for room could not be published: %s", error)

    def withdraw(self) -> None:
        """Remove the message, if there is one."""
        path, self._path = self._path, None
        try:
            if path is not None:
                path.unlink(missing_ok=True)
        except OSError as error:
            _log.debug("the message about a wait for room could not be removed: %s", error)


def published() -> Iterator[str]:
    """Yield the message of each session of this user that waits for room.

    Stale messages, and those of processes that are gone, are removed.
    """
    for path in sorted(state_folder().glob(f"{_PREFIX}*")):
        owner = path.name.removeprefix(_PREFIX).rpartition(".")[0]
        try:
            stale = time.time() - path.stat().st_mtime > _STALE_SECONDS
            if stale or _owners.is_gone(owner):
                path.unlink(missing_ok=True)
            elif path.suffix != ".part":
                yield path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue  # withdrawn meanwhile
