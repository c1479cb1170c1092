"""`sandboxkit top`: show the list of sandboxes and keep it up to date."""

import argparse
import time

from sandboxkit import Operation
from sandboxkit._room import _waits
from sandboxkit.cli import _options, ls
from sandboxkit.cli._text import count


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "top",
        help="watch the list of sandboxes",
        description="Show the list of sandboxes and keep it up to date until Ctrl-C. If the output is not "
        "a terminal, a new list is printed each time. Below it are the sessions of this user that have "
        "waited for room for over ten seconds, and the sandboxes that use the room.",
    )
    ls.selection(parser)
    parser.add_argument(
        "--interval", type=_options.seconds, default=2.0, metavar="TIME", help="default: 2s"
    )
    parser.set_defaults(verb=main, state=None)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    from rich.console import Group  # rich, an extra, is needed for tables only
    from rich.live import Live

    from sandboxkit.cli import _listing, _screen

    console = _screen.console()

    def shown() -> Group:
        found, silent = Operation(ls.listed(args)).result()
        leave = ", Ctrl-C to leave" if console.is_terminal else ""
        head = f"{count(len(found), 'sandbox')}, {time.strftime('%H:%M:%S')}{leave}"
        texts = [f"{name}: {error}" for name, error in silent.items()]
        texts += _waits.published()
        lines = [_screen.cell(text) for text in texts]
        return Group(head, _listing.listing(found, console), *lines)

    try:
        if not console.is_terminal:
            while True:
                console.print(shown())
                console.file.flush()
                time.sleep(args.interval)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(shown(), refresh=True)
                time.sleep(args.interval)
    except KeyboardInterrupt:
        return 0
