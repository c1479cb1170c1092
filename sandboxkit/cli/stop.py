"""`sandboxkit stop`, `pause` and `resume`: change sandboxes by id."""

import argparse

from sandboxkit import Operation, Sandbox, Session
from sandboxkit.cli import _find, _options
from sandboxkit.cli._text import complain, safe_line
from sandboxkit.errors import SandboxError

_FAILED = "Exits with 1 if any of them does not exist or failed; the others are {}."
_VERBS = {
    "stop": (
        "end sandboxes and remove everything of them",
        "End sandboxes and remove everything of them. Prints the id of each.",
        "stopped",
    ),
    "pause": (
        "stop the programs of sandboxes until they are resumed",
        "Stop the programs of sandboxes until `sandboxkit resume`. Files and memory are kept. Prints the id "
        "of each.",
        "paused",
    ),
    "resume": (
        "let the programs of paused sandboxes go on",
        "Let the programs of paused sandboxes go on. Prints the id of each.",
        "resumed",
    ),
}


def add(verbs: _options.Verbs) -> None:
    """Add the verbs to the command line."""
    for verb, (brief, description, done) in _VERBS.items():
        parser = verbs.add_parser(
            verb, help=brief, description=description, epilog=_FAILED.format(done)
        )
        _options.provider(parser, _options.FOUND)
        parser.add_argument("ids", metavar="ID", nargs="+")
        parser.set_defaults(verb=main, change=verb)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    failed = False

    async def change(given: str) -> str:
        info = await _find.located(args.provider, given)
        async with Session(info.provider) as session:
            operation: Operation[None] = getattr(Sandbox, args.change)(
                await session.from_id(info.id)
            )
            await operation
        return info.id

    for operation in [Operation(change(given)) for given in dict.fromkeys(args.ids)]:
        try:
            print(safe_line(operation.result()))
        except SandboxError as error:
            failed = True
            complain(error)
    return 1 if failed else 0
