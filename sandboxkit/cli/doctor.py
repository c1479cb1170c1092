"""`sandboxkit doctor`: show which providers work here and what others lack, and check one."""

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from sandboxkit import Operation, _distribution, _registry
from sandboxkit.cli import _doctor_languages, _doctor_live, _options, _providers
from sandboxkit.cli._progress import StatusLine
from sandboxkit.types import Diagnosis

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_EPILOG = """\
A sandbox is started on each provider of this machine that says that it works.
With --live one sandbox of one provider is created, used and deleted; at a
hosted vendor this costs a few minutes of a sandbox. With --languages a small
program of each language that `Program` grades is compiled and run.

exit codes:
  0    the default provider (or --provider) works; with --live every possible
       check holds; with --languages every language works
  1    it does not work; with --live a check does not hold; with --languages a
       language is missing
  2    wrong usage or configuration
  125  with --live, the sandbox could not be created, or not be deleted

examples:
  sandboxkit doctor -p docker
  sandboxkit doctor -p e2b --live --silence 90s
  sandboxkit doctor -p docker --languages --image sandboxkit/languages:trixie
"""


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "doctor",
        help="show which providers can work here",
        description="Show which providers can work here, how isolated each is, and what to install.",
        epilog=_EPILOG,
    )
    _options.provider(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="an object by provider, or with --live an array of checks, for programs",
    )
    _doctor_languages.add(parser)
    _doctor_live.add(parser)
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    default = _options.provider_name(args)
    names = [args.provider] if args.provider else sorted({*_registry.names(), default})
    if stranger := _distribution.elsewhere():
        print(f"sandboxkit: warning: {stranger}", file=sys.stderr)
    if args.languages:
        return _doctor_languages.main(args, default)
    if args.live:
        return _doctor_live.main(args, default)
    _doctor_live.refuse_options(args)
    with StatusLine() as status:
        status.show(f"checking {', '.join(names)} ...")
        found = Operation(_providers.tried(names)).result()
    if args.json:
        print(json.dumps({name: dataclasses.asdict(found[name]) for name in names}, indent=2))
    else:
        _show({name: found[name] for name in names}, default)
    return 0 if found[default].available else 1


def _show(found: dict[str, Diagnosis], default: str) -> None:
    from sandboxkit.cli import _screen  # only tables need rich, which is an extra

    console = _screen.console(folded=True)
    with console.capture() as text:
        console.print(_blocks(found, default))
        console.print("* used when no provider is named", style="dim")
    print("\n".join(line.rstrip() for line in text.get().splitlines()))


def _blocks(found: dict[str, Diagnosis], default: str) -> "Table":
    """Return one block of text per provider, because the details are too long for columns."""
    from sandboxkit.cli import _screen

    grid = _screen.grid()
    for name, diagnosis in found.items():
        grid.add_row(*_verdict(name, diagnosis, default))
        for what, text in (
            ("isolation", diagnosis.isolation),
            ("found", diagnosis.detail),
            ("to do", diagnosis.remedy),
        ):
            if text:
                grid.add_row(_screen.cell(f"  {what}", "dim"), _screen.cell(text))
        grid.add_row()
    return grid


def _verdict(name: str, diagnosis: Diagnosis, default: str) -> "tuple[Text, Text]":
    from sandboxkit.cli import _screen

    works = _screen.cell("yes", "green") if diagnosis.available else _screen.cell("no", "red")
    return _screen.cell(f"{name} *" if name == default else name, "bold"), works
