"""`sandboxkit stop`: end sandboxes by id."""

import argparse
import sys

from sandboxkit import Operation, Session
from sandboxkit.cli import _options
from sandboxkit.cli._text import safe_line
from sandboxkit.errors import SandboxError


def add(verbs: _options.Verbs) -> None:
    """Declare the verb."""
    parser = verbs.add_parser(
        "stop",
        help="end sandboxes and remove everything of them",
        description="End sandboxes and remove everything of them. Prints each id that is gone.",
        epilog="Exits with 1 if any of them does not exist or could not be stopped; the others are stopped.",
    )
    _options.provider(parser)
    parser.add_argument("ids", metavar="ID", nargs="+")
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run it."""
    failed = False
    with Session(args.provider) as session:

        async def stop(sandbox_id: str) -> None:
            await (await session.from_id(sandbox_id)).stop()

        stops = {sandbox_id: Operation(stop(sandbox_id)) for sandbox_id in args.ids}
        for sandbox_id, operation in stops.items():
            try:
                operation.result()
            except SandboxError as error:
                failed = True
                print(f"sandboxkit: error: {safe_line(str(error))}", file=sys.stderr)
            else:
                print(safe_line(sandbox_id))
    return 1 if failed else 0
