"""`sandboxkit usage` sums the ledger by what is asked for, and knows no prices but the user's."""

import json
import time
from pathlib import Path

import pytest

from sandboxkit.ledger import Amounts, LedgerFile
from sandboxkit.ledger._store import RowKey
from tests.cli.conftest import Cli

HOUR, GIB = 3600.0, 1 << 30
TODAY, YESTERDAY = (
    time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86400 * ago)) for ago in (0, 1)
)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LedgerFile:
    """Two providers, of which one cannot tell memory; today, and a day of last year's kind."""
    monkeypatch.setenv("SANDBOXKIT_LEDGER", str(tmp_path / "ledger.sqlite3"))
    ledger = LedgerFile(tmp_path / "ledger.sqlite3")
    whole = Amounts(
        2, 4 * HOUR, 1 * HOUR, 4 * HOUR, 2 * GIB * HOUR, 2 * HOUR, GIB, 3 * GIB, 4 * HOUR
    )
    untold = Amounts(1, 2 * HOUR, 0.5 * HOUR, 2 * HOUR)
    ledger.add(
        {
            RowKey(TODAY, "local", '{"run": "42"}'): whole,
            RowKey(YESTERDAY, "local", '{"run": "43"}'): whole,
            RowKey(TODAY, "modal", '{"run": "42"}'): untold,
        },
        seconds=5,
    )
    return ledger


def rows(text: str) -> list[list[str]]:
    """The cells of a printed table."""
    return [[cell for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in rows(text)]


def test_a_line_for_each_provider(ledger: LedgerFile, cli: Cli) -> None:
    assert cells(cli("usage").stdout) == [
        ["provider", "starts", "sandboxes", "CPU", "memory", "sent", "received"],
        ["local", "4", "8.0 h", "2.0 h", "4.0 GiB·h of 50 %", "2.0 GiB", "6.0 GiB"],
        ["modal", "1", "2.0 h", "30.0 min", "not known", "not known", "not known"],
    ]


def test_a_line_for_each_tag_and_day(ledger: LedgerFile, cli: Cli) -> None:
    by_tag = cells(cli("usage", "--by", "tag:run", "--by", "provider").stdout)
    assert [row[:4] for row in by_tag] == [
        ["run", "provider", "starts", "sandboxes"],
        ["42", "local", "2", "4.0 h"],
        ["42", "modal", "1", "2.0 h"],
        ["43", "local", "2", "4.0 h"],
    ]
    assert len(cells(cli("usage", "--by", "day").stdout)) == 3
    (line,) = json.loads(cli("usage", "--by", "day", "--since", TODAY, "--json").stdout)
    assert (line["day"], line["starts"]) == (TODAY, 3)


def test_selected_by_tag_and_provider(ledger: LedgerFile, cli: Cli) -> None:
    (line,) = json.loads(cli("usage", "--tag", "run:42", "-p", "local", "--json").stdout)
    assert line == {
        "provider": "local",
        "starts": 2,
        "sandbox_seconds": 4 * HOUR,
        "processor_seconds": HOUR,
        "processor_known_seconds": 4 * HOUR,
        "memory_byte_seconds": 2 * GIB * HOUR,
        "memory_known_seconds": 2 * HOUR,
        "sent_bytes": GIB,
        "received_bytes": 3 * GIB,
        "bytes_known_seconds": 4 * HOUR,
    }
    (modal,) = json.loads(cli("usage", "-p", "modal", "--json").stdout)
    assert modal["memory_byte_seconds"] is None
    assert json.loads(cli("usage", "--tag", "run:44", "--json").stdout) == []


def test_prices_are_the_users(ledger: LedgerFile, cli: Cli, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[local]\nstart = 0.5\nsandbox_hour = 0.1\nprocessor_hour = 0.2\n[modal]\n")
    lines = json.loads(cli("usage", "--prices", str(prices), "--json").stdout)
    assert [line["cost"] for line in lines] == [pytest.approx(4 * 0.5 + 8 * 0.1 + 2 * 0.2), 0]
    prices.write_text("[modal]\nmemory_gib_hour = 0.1\n")
    assert [row[-1] for row in cells(cli("usage", "--prices", str(prices)).stdout)] == [
        "cost",
        "not known",  # no price
        "not known",  # no amount
    ]
    assert "cost" not in cli("usage", "--json").stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[local]\nsandbox_day = 1", "unknown price 'sandbox_day'"),
        ("[local]\nstart = -1", "start = -1 is not a number from 0 on"),
        ("[local]\nstart = '1'", "is not a number"),
        ("local = 1", "'local' is no table"),
        ("[local", "cannot be read"),
    ],
)
def test_prices_that_are_wrong_are_refused(
    text: str, expected: str, ledger: LedgerFile, cli: Cli, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(text)
    done = cli("usage", "--prices", str(prices))
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_earlier_days_are_removed_on_request(ledger: LedgerFile, cli: Cli) -> None:
    assert cli("usage", "--prune", TODAY).stdout == ""
    assert {entry.day for entry in ledger.entries({})} == {TODAY}


def test_nothing_used_prints_nothing(cli: Cli, tmp_path: Path) -> None:
    done = cli("usage", env={"SANDBOXKIT_LEDGER": str(tmp_path / "none")})
    assert (done.returncode, done.stdout) == (0, "")


def test_errors_name_the_remedy(cli: Cli, tmp_path: Path) -> None:
    assert "SANDBOXKIT_LEDGER=off" in cli("usage", env={"SANDBOXKIT_LEDGER": "off"}).stderr
    broken = tmp_path / "broken"
    broken.write_text("no database" * 100)
    done = cli("usage", env={"SANDBOXKIT_LEDGER": str(broken)})
    assert done.returncode == 2
    assert "remove it" in done.stderr
    assert cli("usage", "--by", "tag:").returncode == 2


def test_a_run_is_in_it_when_it_has_ended(cli: Cli, tmp_path: Path) -> None:
    env = {"SANDBOXKIT_LEDGER": str(tmp_path / "run")}
    assert cli("run", "--tag", "run:7", "--", "sleep", "0.3", env=env).returncode == 0
    (line,) = json.loads(cli("usage", "--tag", "run:7", "--json", env=env).stdout)
    assert line["starts"] == 1
    assert line["sandbox_seconds"] > 0.3
    assert line["processor_seconds"] > 0
