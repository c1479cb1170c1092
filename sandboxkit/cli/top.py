"""`sandboxkit top`: the list of sandboxes, kept current."""

import argparse
import time

from sandboxkit import Operation
from sandboxkit.cli import _options, ls
from sandboxkit.cli._text import count


def add(verbs: _options.Verbs) -> None:
    """Declare the verb."""
    parser = verbs.add_parser(
        "top",
        help="watch the list of sandboxes",
        description="Show the list of sandboxes and keep it current until Ctrl-C.",
    )
    ls.selection(parser)
    parser.add_argument(
        "--interval", type=_options.seconds, default=2.0, metavar="TIME", help="default: 2s"
    )
    parser.set_defaults(verb=main, state=None)


def main(args: argparse.Namespace) -> int:
    """Run it."""
    from rich.console import Group  # rich, an extra, is needed for tables only
    from rich.live import Live

    from sandboxkit.cli import _listing, _screen

    console = _screen.console()
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        try:
            while True:
                found, silent = Operation(ls.listed(args)).result()
                head = (
                    f"{count(len(found), 'sandbox')}, {time.strftime('%H:%M:%S')}, Ctrl-C to leave"
                )
                lines = [_screen.cell(f"{name}: {error}") for name, error in silent.items()]
                live.update(Group(head, _listing.listing(found, console), *lines), refresh=True)
                time.sleep(args.interval)
        except KeyboardInterrupt:
            return 0
