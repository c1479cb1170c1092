"""The ledger: what this user's sandboxes used, by day, provider and tags, in one SQLite file."""

from sandboxkit.ledger._amounts import Amounts
from sandboxkit.ledger._ledger import flush
from sandboxkit.ledger._store import LedgerEntry, LedgerFile, ledger_path, totals

__all__ = ["Amounts", "LedgerEntry", "LedgerFile", "flush", "ledger_path", "totals"]
