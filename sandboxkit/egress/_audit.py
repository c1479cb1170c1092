"""The records of egress decisions, and the log that stores them."""

import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass

_log = logging.getLogger("sandboxkit")


@dataclass(frozen=True, slots=True)
class EgressRecord:
    """One connection that a sandbox requested: its target, the decision, and the bytes that passed."""

    time: float
    """When the request came (seconds since the epoch)."""
    sandbox: str
    """The sandbox's id."""
    method: str
    """The request's method, such as "CONNECT"; "" if there was no valid request."""
    name: str
    """The requested host; "" if there was no valid request."""
    port: int
    """The requested port; 0 if there was no valid request."""
    path: str
    """The path of a plain HTTP request, without its query; at most 1000 characters."""
    address: str
    """The IP address that was dialled; "" if none was."""
    allowed: bool
    """Whether the connection was made."""
    reason: str
    """Why the connection was refused or cut; "" if it ended by itself."""
    sent: int
    """Bytes from the sandbox to the host."""
    received: int
    """Bytes from the host to the sandbox."""
    seconds: float
    """How long the connection lasted."""

    def json(self) -> str:
        """Return the record as one line of JSON, without a line end."""
        import json  # not needed by most programs

        return json.dumps(asdict(self))


class AuditLog:
    """Appends records to a file, or passes them to the user's function."""

    def __init__(self, to: "str | os.PathLike[str] | Callable[[EgressRecord], object] | None"):
        """Open the file, if `to` is a path. Raises OSError, also for a named pipe that nobody reads."""
        self._call = to if callable(to) else None
        self._file: int | None = None
        if isinstance(to, str | os.PathLike):
            # Nothing waits for a pipe's reader: the event loop serves every sandbox of this process.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            self._file = os.open(to, flags, 0o600)

    def add(self, record: EgressRecord) -> None:
        """Write one record. A failure is only logged, because the connection has already ended."""
        try:
            if self._call is not None:
                self._call(record)
            elif self._file is not None:
                os.write(self._file, record.json().encode() + b"\n")
        except Exception:  # noqa: BLE001 - the user's function, or a disk that is full
            _log.exception("an egress record could not be written: %s", record.json())

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
