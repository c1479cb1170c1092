"""`sandboxkit logs`: the output of a sandbox's main command."""

import argparse
import sys

from sandboxkit import Session
from sandboxkit.cli import _options
from sandboxkit.cli._text import Neutraliser


def add(verbs: _options.Verbs) -> None:
    """Declare the verb."""
    parser = verbs.add_parser(
        "logs",
        help="show the output of a sandbox's main command",
        description="Print the newest output of a sandbox's main command, the one 'run -d' was given.",
    )
    _options.provider(parser)
    parser.add_argument("id", metavar="ID")
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run it."""
    with Session(args.provider) as session:
        data = session.from_id(args.id).result().logs().result()
    if sys.stdout.isatty():
        sys.stdout.write(Neutraliser().feed(data, final=True))
    else:
        sys.stdout.buffer.write(data)
    return 0
