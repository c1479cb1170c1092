"""`sandboxkit stop`: end sandboxes by id."""

import argparse
import sys

from sandboxkit import Operation, Session
from sandboxkit.cli import _find, _options
from sandboxkit.cli._text import safe_line
from sandboxkit.errors import SandboxError


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "stop",
        help="end sandboxes and remove everything of them",
        description="End sandboxes and remove everything of them. Prints the id of each.",
        epilog="Exits with 1 if any of them does not exist or could not be stopped; the others are stopped.",
    )
    _options.provider(parser, found=True)
    parser.add_argument("ids", metavar="ID", nargs="+")
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    failed = False

    async def stop(given: str) -> str:
        info = await _find.located(args.provider, given)
        async with Session(info.provider) as session:
            await (await session.from_id(info.id)).stop()
        return info.id

    for operation in [Operation(stop(given)) for given in dict.fromkeys(args.ids)]:
        try:
            print(safe_line(operation.result()))
        except SandboxError as error:
            failed = True
            print(f"sandboxkit: error: {safe_line(str(error))}", file=sys.stderr)
    return 1 if failed else 0
