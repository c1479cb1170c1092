"""A ledger of its own for each test."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxkit.ledger import Amounts, LedgerFile, _meter, flush, totals

Totals = Callable[..., Amounts]


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LedgerFile:
    path = tmp_path / "ledger.sqlite3"
    monkeypatch.setenv("SANDBOXKIT_LEDGER", str(path))
    # On a busy machine a last reading takes longer than a deletion waits for it, and is not charged.
    monkeypatch.setattr(_meter, "_READ_SECONDS", 60.0)
    return LedgerFile(path)


@pytest.fixture
def used(ledger: LedgerFile) -> Totals:
    """Return what the ledger has for these tags."""

    def sums(**tags: str) -> Amounts:
        flush().result(150)
        return totals(ledger.entries(tags))

    return sums
