"""`sandboxkit doctor --languages`: compile and run a small program of each language."""

import argparse
import asyncio
import dataclasses
import importlib
import json
from typing import Any

from sandboxkit.cli import _options
from sandboxkit.errors import ConfigurationError
from sandboxkit.options import SpecOptions


def add(parser: argparse.ArgumentParser) -> None:
    """Add --languages."""
    parser.add_argument(
        "--languages",
        action="store_true",
        help="compile and run a small program of each language, in sandboxes of one provider",
    )


def main(args: argparse.Namespace, provider: str) -> int:
    """Print which languages work; return 0 if all do, else 1."""
    if args.live or args.silence is not None:
        raise ConfigurationError("--languages goes without --live and --silence")
    reports = asyncio.run(_reports(provider, _options.spec(args), quiet=args.json))
    if args.json:
        print(json.dumps([dataclasses.asdict(report) for report in reports], indent=2))
    return 0 if all(report.works for report in reports) else 1


# Any: LanguageReport of an integration, which this package does not know.
async def _reports(provider: str, options: SpecOptions, *, quiet: bool) -> list[Any]:
    from sandboxkit import Session

    programs = importlib.import_module("sandboxkit.integrations.rewards.programs")
    reports = []
    async with Session(provider, **options) as session:
        async for report in programs.check_languages(session):
            reports.append(report)
            if not quiet:
                works = f"yes  {report.seconds:5.1f} s" if report.works else "no "
                told = report.detail or report.version
                print(f"{report.name:12} {works}  {told}".rstrip(), flush=True)
    return reports
