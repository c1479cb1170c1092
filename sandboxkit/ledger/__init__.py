"""The ledger: what this user's sandboxes used, by day, provider and tags, in one SQLite file."""

from sandboxkit.ledger._amounts import Amounts
from sandboxkit.ledger._ledger import Ledger, flush, of_process
from sandboxkit.ledger._meter import SandboxMeter
from sandboxkit.ledger._store import LedgerEntry, LedgerFile, ledger_path, totals

__all__ = [
    "Amounts",
    "Ledger",
    "LedgerEntry",
    "LedgerFile",
    "SandboxMeter",
    "flush",
    "ledger_path",
    "of_process",
    "totals",
]
