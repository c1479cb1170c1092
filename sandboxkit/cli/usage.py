"""`sandboxkit usage`: what this user's sandboxes used, from the ledger."""

import argparse
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sandboxkit import _tags
from sandboxkit.cli import _options
from sandboxkit.cli._text import aligned, safe_line
from sandboxkit.errors import ConfigurationError
from sandboxkit.ledger import LedgerEntry, LedgerFile, ledger_path, totals

if TYPE_CHECKING:
    from sandboxkit.ledger._prices import ProviderPrices

_UNKNOWN = "not known"
_EPILOG = """\
Days are those of UTC. A DAY is a date such as 2026-11-27, or a time such as 7d,
which is the day so long ago. "not known" stands where the provider could not
tell; "of 80 %" is the share of the sandbox time in which the figure was known.
The memory of sandboxes that lived briefly is not known.

A prices FILE is TOML with a table for each provider, and any of these prices:
  [docker]
  start = 0.0            # for each start
  sandbox_hour = 0.02
  processor_hour = 0.04  # for an hour of CPU time
  memory_gib_hour = 0.005
  sent_gib = 0.0
  received_gib = 0.09

examples:
  sandboxkit usage --tag run:42
  sandboxkit usage --since 7d --by day --by provider
  sandboxkit usage --by tag:run --prices prices.toml --json
"""


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "usage",
        help="what your sandboxes used: time, CPU, memory, bytes",
        description="Print what the sandboxes of this user on this machine used, whichever process made "
        "them: sandbox time, CPU time, memory over time, starts, and bytes over the links to their agents.",
        epilog=_EPILOG,
    )
    _options.provider(parser, "only of this backend (default: every one)")
    _options.tags(parser)
    parser.add_argument("--since", metavar="DAY", type=_day, help="from this day on")
    parser.add_argument(
        "--by",
        metavar="WHAT",
        type=_grouping,
        action="append",
        help="a line for each day, provider, or tag:KEY; repeatable (default: provider)",
    )
    parser.add_argument("--prices", metavar="FILE", help="add a column with the costs")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument(
        "--prune",
        metavar="DAY",
        type=_day,
        help="remove what was before this day, and print nothing",
    )
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    from sandboxkit.ledger._prices import (
        read_prices,
    )  # TOML costs time that other verbs need not pay

    path = ledger_path()
    if path is None:
        raise ConfigurationError("there is no ledger: SANDBOXKIT_LEDGER=off turns it off")
    ledger = LedgerFile(path)
    if args.prune is not None:
        ledger.prune(args.prune)
        return 0
    prices = None if args.prices is None else read_prices(args.prices)
    entries = ledger.entries(_tags.parse(args.tag), provider=args.provider, since=args.since or "")
    by: list[str] = args.by or ["provider"]
    groups: dict[tuple[str, ...], list[LedgerEntry]] = {}
    for entry in entries:
        groups.setdefault(tuple(_value(entry, each) for each in by), []).append(entry)
    lines = sorted(groups.items())
    if args.json:
        print(json.dumps([_as_json(by, *line, prices) for line in lines], indent=2))
    elif lines:
        print(_table(by, lines, prices))
    return 0


def _value(entry: LedgerEntry, by: str) -> str:
    if by == "day":
        return entry.day
    return entry.provider if by == "provider" else entry.tags.get(by.removeprefix("tag:"), "-")


def _as_json(
    by: Sequence[str],
    group: tuple[str, ...],
    entries: Sequence[LedgerEntry],
    prices: "Mapping[str, ProviderPrices] | None",
) -> dict[str, object]:
    total = totals(entries)
    line: dict[str, object] = dict(zip(by, group, strict=True))
    line |= {
        "starts": total.starts,
        "sandbox_seconds": total.sandbox_seconds,
        "processor_seconds": _known(total.processor_seconds, total.processor_known),
        "processor_known_seconds": total.processor_known,
        "memory_byte_seconds": _known(total.memory_byte_seconds, total.memory_known),
        "memory_known_seconds": total.memory_known,
        "sent_bytes": _known(total.sent_bytes, total.bytes_known),
        "received_bytes": _known(total.received_bytes, total.bytes_known),
        "bytes_known_seconds": total.bytes_known,
    }
    if prices is not None:
        line["cost"] = _cost(entries, prices)
    return line


def _known(amount: float, seconds: float) -> float | None:
    return amount if seconds else None


def _cost(entries: Sequence[LedgerEntry], prices: "Mapping[str, ProviderPrices]") -> float | None:
    """Return the cost of the entries; None if a provider has no prices, or a priced amount is not known."""
    cost = 0.0
    for provider in {entry.provider for entry in entries}:
        its = [entry for entry in entries if entry.provider == provider]
        found = prices[provider].cost(totals(its)) if provider in prices else None
        if found is None:
            return None
        cost += found
    return cost


def _table(
    by: Sequence[str],
    lines: Sequence[tuple[tuple[str, ...], list[LedgerEntry]]],
    prices: "Mapping[str, ProviderPrices] | None",
) -> str:
    head = [each.removeprefix("tag:") for each in by]
    rows = [[*head, "starts", "sandboxes", "CPU", "memory", "sent", "received"]]
    for group, entries in lines:
        total = totals(entries)
        row = [*map(safe_line, group), str(total.starts), _hours(total.sandbox_seconds)]
        for amount, known, form in (
            (total.processor_seconds, total.processor_known, _hours),
            (total.memory_byte_seconds, total.memory_known, _memory),
            (total.sent_bytes, total.bytes_known, _size),
            (total.received_bytes, total.bytes_known, _size),
        ):
            row.append(_cell(form(amount), known, total.sandbox_seconds))
        rows.append(row)
    if prices is not None:
        rows[0].append("cost")
        for row, (_, entries) in zip(rows[1:], lines, strict=True):
            cost = _cost(entries, prices)
            row.append(_UNKNOWN if cost is None else f"{cost:.4g}")
    return aligned(rows, len(by), gap="  ")


def _cell(text: str, known: float, seconds: float) -> str:
    if not known:
        return _UNKNOWN
    share = known / seconds if seconds else 1.0
    return text if share > 0.995 else f"{text} of {100 * share:.0f} %"


def _hours(seconds: float) -> str:
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _memory(byte_seconds: float) -> str:
    gib = byte_seconds / (1 << 30)
    if gib >= 3600:
        return f"{gib / 3600:.1f} GiB·h"
    return f"{gib:.1f} GiB·s" if gib >= 1 else f"{1024 * gib:.1f} MiB·s"


def _size(number: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f} B"


def _grouping(text: str) -> str:
    key = text.removeprefix("tag:")
    if text in ("day", "provider") or (text.startswith("tag:") and key):
        return text
    raise argparse.ArgumentTypeError(
        f"{text!r} is neither day, provider nor tag:KEY such as tag:run"
    )


def _day(text: str) -> str:
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        try:
            time.strptime(text, "%Y-%m-%d")
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no day of the calendar") from None
        return text
    ago = time.time() - _options.seconds(text)
    return time.strftime("%Y-%m-%d", time.gmtime(max(ago, 0.0)))
