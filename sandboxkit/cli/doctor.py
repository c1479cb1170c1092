"""`sandboxkit doctor`: which providers can work here, and what is missing for the others."""

import argparse
import dataclasses
import json

from sandboxkit import Operation, _registry
from sandboxkit.cli import _options, _providers
from sandboxkit.types import Diagnosis


def add(verbs: _options.Verbs) -> None:
    """Declare the verb."""
    parser = verbs.add_parser(
        "doctor",
        help="say which providers can work here",
        description="Say which providers can work here, how isolated each is, and what to install.",
        epilog="Exits with 0 if the default provider (or --provider) works, else 1.",
    )
    _options.provider(parser)
    parser.add_argument("--json", action="store_true", help="an object by provider, for programs")
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run it."""
    default = _options.provider_name(args)
    names = [args.provider] if args.provider else sorted({*_registry.names(), default})
    found = Operation(_providers.diagnoses(names)).result()
    if args.json:
        print(json.dumps({name: dataclasses.asdict(found[name]) for name in names}, indent=2))
    else:
        _show({name: found[name] for name in names}, default)
    return 0 if found[default].available else 1


def _show(found: dict[str, Diagnosis], default: str) -> None:
    from sandboxkit.cli import _screen  # rich, an extra, is needed for tables only

    table = _screen.table(
        "PROVIDER", "WORKS", "ISOLATION", "FOUND", "TO DO", fixed=("PROVIDER", "WORKS")
    )
    for name, diagnosis in found.items():
        table.add_row(
            _screen.cell(f"{name} *" if name == default else name, "bold"),
            _screen.cell("yes", "green") if diagnosis.available else _screen.cell("no", "red"),
            _screen.cell(diagnosis.isolation or "-"),
            _screen.cell(diagnosis.detail or "-"),
            _screen.cell(diagnosis.remedy or "-"),
        )
    console = _screen.console()
    console.print(table)
    console.print("* used when no provider is named", style="dim")
