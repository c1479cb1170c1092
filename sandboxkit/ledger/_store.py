"""The ledger's file: one SQLite file of a user, to which many processes add."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sandboxkit._life._state_folder import state_folder
from sandboxkit.errors import ConfigurationError
from sandboxkit.ledger._amounts import FIELDS, Amounts

if TYPE_CHECKING:
    import sqlite3

VARIABLE = "SANDBOXKIT_LEDGER"
_NAME = "ledger.sqlite3"
_DAY_ROWS = 20_000
"""How many rows a day may have; further combinations of tags are added to the row tagged OTHER."""
OTHER = '{"sandboxkit.other": ""}'
_KEPT_DAYS = 400
"""Rows of earlier days are removed."""
_COLUMNS = ", ".join(FIELDS)
_CREATE = f"""
CREATE TABLE IF NOT EXISTS used (
    day TEXT NOT NULL, provider TEXT NOT NULL, tags TEXT NOT NULL,
    {", ".join(f"{name} NOT NULL DEFAULT 0" for name in FIELDS)},
    PRIMARY KEY (day, provider, tags)
) WITHOUT ROWID
"""
_ADD = f"""
INSERT INTO used (day, provider, tags, {_COLUMNS}) VALUES (?, ?, ?, {", ".join("?" * len(FIELDS))})
ON CONFLICT DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in FIELDS)}
"""


class RowKey(NamedTuple):
    """The key of a row of the file."""

    day: str
    """The day in UTC, such as 2026-11-27."""
    provider: str
    tags: str
    """The tags as JSON with sorted keys."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The usage of one provider's sandboxes with the same tags on one day."""

    day: str
    provider: str
    tags: Mapping[str, str]
    amounts: Amounts


def ledger_path() -> Path | None:
    """Return the path of the user's ledger; None if SANDBOXKIT_LEDGER=off.

    SANDBOXKIT_LEDGER names another file; the default is ledger.sqlite3 in the state folder.
    """
    given = os.environ.get(VARIABLE)
    if given == "off":
        return None
    return Path(given).absolute() if given else state_folder() / _NAME


class LedgerFile:
    """The file at `path`. Each call opens it anew, so nothing of it lives on over a fork."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, rows: Mapping[RowKey, Amounts], *, seconds: float) -> None:
        """Add amounts to the file in one transaction; it waits up to `seconds` for other processes.

        Raises OSError or sqlite3.Error if nothing was added.
        """
        with self._opened(seconds) as file:
            file.execute("BEGIN IMMEDIATE")
            file.execute(_CREATE)
            for key, amounts in self._bounded(file, rows):
                file.execute(_ADD, (*key, *(getattr(amounts, name) for name in FIELDS)))
            file.execute("DELETE FROM used WHERE day < date('now', ?)", (f"-{_KEPT_DAYS} days",))
            file.execute("COMMIT")

    def _bounded(
        self, file: "sqlite3.Connection", rows: Mapping[RowKey, Amounts]
    ) -> Iterator[tuple[RowKey, Amounts]]:
        count = "SELECT count(*) FROM used WHERE day = ?"
        room: dict[str, int] = {}
        for key, amounts in rows.items():
            if key.day not in room:
                room[key.day] = _DAY_ROWS - file.execute(count, (key.day,)).fetchone()[0]
            found = "SELECT 1 FROM used WHERE (day, provider, tags) = (?, ?, ?)"
            if room[key.day] > 0 or file.execute(found, key).fetchone():
                room[key.day] -= 1
                yield key, amounts
            else:
                yield key._replace(tags=OTHER), amounts

    def entries(
        self, tags: Mapping[str, str], *, provider: str | None = None, since: str = ""
    ) -> list[LedgerEntry]:
        """Return the rows that carry all of `tags`, from the day `since` on, by day, provider and tags.

        Raises ConfigurationError if the file cannot be read; a file that does not exist has no rows.
        """
        import json

        if not self.path.exists():
            return []
        query = f"SELECT day, provider, tags, {_COLUMNS} FROM used WHERE day >= ? ORDER BY day, provider, tags"
        with self._readable() as file:
            found = file.execute(query, (since,)).fetchall() if _has_table(file) else []
        entries = (
            LedgerEntry(day, name, json.loads(text), Amounts(*numbers))
            for day, name, text, *numbers in found
        )
        return [
            entry
            for entry in entries
            if entry.tags.items() >= tags.items() and provider in (None, entry.provider)
        ]

    def prune(self, before: str) -> int:
        """Remove the rows of days before `before`; return how many there were."""
        if not self.path.exists():
            return 0
        with self._readable() as file:
            if not _has_table(file):
                return 0
            file.execute("BEGIN IMMEDIATE")
            removed = file.execute("DELETE FROM used WHERE day < ?", (before,)).rowcount
            file.execute("COMMIT")
            file.execute("VACUUM")
            return int(removed)

    @contextmanager
    def _readable(self) -> "Iterator[sqlite3.Connection]":
        import sqlite3

        try:
            with self._opened(5.0) as file:
                yield file
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(
                f"the ledger {self.path} cannot be read: {error}; if it is damaged, remove it"
            ) from error

    @contextmanager
    def _opened(self, seconds: float) -> "Iterator[sqlite3.Connection]":
        import sqlite3  # it costs 5 ms, which nobody pays who has no sandbox

        # The rollback journal, because it works on every file system and leaves one file behind.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        file = sqlite3.connect(self.path, timeout=seconds, isolation_level=None)
        try:
            # The worst that a machine's failure does then is to lose the last amounts.
            file.execute("PRAGMA synchronous = NORMAL")
            yield file
        finally:
            file.close()


def _has_table(file: "sqlite3.Connection") -> bool:
    return bool(file.execute("SELECT 1 FROM sqlite_master WHERE name = 'used'").fetchone())


def totals(entries: Iterable[LedgerEntry]) -> Amounts:
    """Return the sum of the entries' amounts."""
    total = Amounts()
    for entry in entries:
        total.add(entry.amounts)
    return total
