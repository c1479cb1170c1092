"""Files for vLLM servers, in a shared folder."""

import contextlib
import fcntl
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from safetensors import SafetensorError

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations._retries import pauses
from sandboxkit.integrations.grpo.engines import EngineError

__all__ = ["OwnFolder"]

_PREFIX = "sandboxkit-weights-"
_LOCK = "lock"


class OwnFolder:
    """A new folder inside `folder`, deleted by `close`.

    If its process is killed, the next OwnFolder in `folder` deletes it: a lock file shows whether the
    owner lives. Raises ConfigurationError if `folder` cannot be written to.
    """

    def __init__(self, folder: str, patience: float) -> None:
        self._patience = patience
        try:
            for left in Path(folder).glob(f"{_PREFIX}*"):
                _sweep(left)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder)).resolve()
            try:
                self.path.chmod(0o755)  # a server may be another user's
                self._lock = _locked(self.path)
            except OSError:
                shutil.rmtree(self.path, ignore_errors=True)
                raise
        except OSError as error:
            raise ConfigurationError(
                f"engine.folder={folder!r} cannot be written: {error}"
            ) from error

    def write(self, save: Callable[[], None]) -> None:
        """Call `save`, with retries after OSError and SafetensorError.

        Raises EngineError if it still fails after `patience` seconds.
        """
        deadline = time.monotonic() + self._patience
        for wait in pauses():
            try:
                return save()
            except (OSError, SafetensorError) as error:
                if time.monotonic() + wait > deadline:
                    raise EngineError(
                        f"for engine.patience={self._patience:g} s no weights could be written into "
                        f"engine.folder={str(self.path.parent)!r} ({error}): make room, and start "
                        "the run again, which goes on from its checkpoint"
                    ) from error
            time.sleep(wait)

    def close(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()


def _locked(folder: Path) -> IO[bytes] | None:
    """Create the folder's lock file, already locked when it appears; None if locks are unsupported."""
    file = (folder / f".{_LOCK}").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    (folder / f".{_LOCK}").rename(folder / _LOCK)
    return file


def _sweep(folder: Path) -> None:
    """Delete a folder whose owner died; a folder without a lock file is still being made."""
    with contextlib.suppress(OSError), (folder / _LOCK).open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
