"""A ledger of its own for each test."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxkit.ledger import Amounts, LedgerFile, flush, totals

Totals = Callable[..., Amounts]


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LedgerFile:
    path = tmp_path / "ledger.sqlite3"
    monkeypatch.setenv("SANDBOXKIT_LEDGER", str(path))
    return LedgerFile(path)


@pytest.fixture
def used(ledger: LedgerFile) -> Totals:
    """Return what the ledger has for these tags."""

    def sums(**tags: str) -> Amounts:
        flush().result(60)
        return totals(ledger.entries(tags))

    return sums
