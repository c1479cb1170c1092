"""Records of one account's images or snapshots at a vendor, one file each in the user's state folder."""

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from sandboxkit.errors import ConfigurationError
from sandboxkit.provider import state_folder

_T = TypeVar("_T")


class AccountRecords(Generic[_T]):
    """Records by a key. Names of files contain only hashes of keys and accounts, which may be secret."""

    def __init__(
        self,
        folder: str,
        kind: Callable[..., _T],
        prefix: str,
        name: Callable[[str], str],
    ) -> None:
        """`kind` is the dataclass of a record, `prefix` that of the account's files, and `name` maps a key to
        the rest of a file's name."""
        self._folder, self._kind, self._prefix, self._name = folder, kind, prefix, name

    def find(self, key: str) -> _T | None:
        """Return a record, or None."""
        try:
            return self._read(self.path(key))
        except ConfigurationError:
            return None  # the state folder is unusable; `keep` raises the error

    def keep(self, key: str, record: Any) -> None:  # Any: a dataclass, which no type says
        """Store a record in the place of an earlier one."""
        path = self.path(key)
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(f".{secrets.token_hex(8)}")
        part.write_text(json.dumps(asdict(record)))
        os.replace(part, path)

    def forget(self, key: str) -> None:
        """Delete a record, if there is one."""
        self.path(key).unlink(missing_ok=True)

    def __iter__(self) -> Iterator[_T]:
        for path in sorted(self.paths()):
            if (record := self._read(path)) is not None:
                yield record

    def paths(self) -> set[Path]:
        """Return the account's files."""
        return set((state_folder() / self._folder).glob(f"{self._prefix}*.json"))

    def path(self, key: str) -> Path:
        """Return the file of a record."""
        return state_folder() / self._folder / f"{self._prefix}{self._name(key)}.json"

    def _read(self, path: Path) -> _T | None:
        try:
            return self._kind(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None  # missing, or written by another version


def short(text: str, digits: int) -> str:
    """Return the first hexadecimal digits of a text's hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
