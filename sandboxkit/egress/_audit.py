"""The record of each decision on egress, and where records go."""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass

_log = logging.getLogger("sandboxkit")


@dataclass(frozen=True, slots=True)
class EgressRecord:
    """One connection that a sandbox asked for: what it wanted, the decision, and what passed."""

    time: float
    """When the request came (seconds since the epoch)."""
    sandbox: str
    """The sandbox's id."""
    method: str
    """The request's method, such as "CONNECT"; "" if there was no valid request."""
    name: str
    """The host that was asked for; "" if there was no valid request."""
    port: int
    """The port that was asked for; 0 if there was no valid request."""
    path: str
    """The path of a plain HTTP request, without its query; at most 1000 characters."""
    address: str
    """The address that was dialled; "" if none was."""
    allowed: bool
    """Whether the connection was made."""
    reason: str
    """Why it was refused or cut; "" if it ended by itself."""
    sent: int
    """Bytes from the sandbox to the host."""
    received: int
    """Bytes from the host to the sandbox."""
    seconds: float
    """How long it lasted."""

    def json(self) -> str:
        """Return the record as one line of JSON, without a line end."""
        return json.dumps(asdict(self))


class AuditLog:
    """Takes records, and appends them to a file or gives them to the user's function."""

    def __init__(self, to: "str | os.PathLike[str] | Callable[[EgressRecord], object] | None"):
        """Open the file, if `to` is a path. Raises OSError."""
        self._call = to if callable(to) else None
        self._file: int | None = None
        if isinstance(to, str | os.PathLike):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(to, flags, 0o600)

    def add(self, record: EgressRecord) -> None:
        """Write one record. A failure is logged, since the connection is already over."""
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
