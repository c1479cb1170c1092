"""`sandboxkit ls`: the sandboxes there are."""

import argparse
import datetime
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sandboxkit import Operation, SandboxInfo, SandboxState, _tags
from sandboxkit.cli import _options, _providers
from sandboxkit.cli._text import duration, safe_line

if TYPE_CHECKING:
    from rich.table import Table


def add(verbs: _options.Verbs) -> None:
    """Declare the verb."""
    parser = verbs.add_parser(
        "ls",
        help="list sandboxes",
        description="List sandboxes, whichever process made them.",
    )
    _options.provider(parser)
    _options.selection(parser, "--all")
    parser.add_argument(
        "--state",
        type=SandboxState,
        choices=list(SandboxState),
        metavar="STATE",
        help="starting, running or stopped",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="an array of objects, for programs")
    form.add_argument("-q", "--quiet", action="store_true", help="ids only")
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run it."""
    found = Operation(listed(args)).result()
    if args.json:
        print(json.dumps([as_json(info) for info in found], indent=2))
    elif args.quiet:
        for info in found:
            print(safe_line(info.id))
    elif found:
        show(found)
    return 0


async def listed(args: argparse.Namespace) -> list[SandboxInfo]:
    """The sandboxes that the options select, newest last."""
    tags = _tags.parse(args.tag)
    found: list[SandboxInfo] = []
    for name in await _providers.chosen(args):
        async with _providers.loaded(name) as provider:
            found += [
                info async for info in provider.list(tags) if args.state in (None, info.state)
            ]
    oldest = datetime.datetime.min.replace(tzinfo=datetime.UTC)
    return sorted(found, key=lambda info: (info.created_at or oldest, info.id))


def as_json(info: SandboxInfo) -> dict[str, object]:
    """One sandbox for a program; times are ISO 8601."""
    return {
        "id": info.id,
        "provider": info.provider,
        "state": info.state,
        "image": info.image,
        "created_at": info.created_at and info.created_at.isoformat(),
        "expires_at": info.expires_at and info.expires_at.isoformat(),
        "tags": _tags.public(info.tags),
    }


def show(found: Sequence[SandboxInfo]) -> None:
    """Print the sandboxes as a table."""
    from sandboxkit.cli import _screen  # rich, an extra, is needed for tables only

    _screen.console().print(table(found))


def table(found: Sequence[SandboxInfo]) -> "Table":
    """The sandboxes as a table for a rich console."""
    from sandboxkit.cli import _screen

    now = datetime.datetime.now(datetime.UTC)
    result = _screen.table(
        "ID", "PROVIDER", "STATE", "IMAGE", "AGE", "LEFT", "TAGS", right=("AGE", "LEFT")
    )
    styles = {
        SandboxState.RUNNING: "green",
        SandboxState.STARTING: "yellow",
        SandboxState.STOPPED: "dim",
    }
    for info in found:
        age = duration((now - info.created_at).total_seconds()) if info.created_at else "-"
        left = duration((info.expires_at - now).total_seconds()) if info.expires_at else "-"
        tags = " ".join(
            f"{key}:{value}" if value else key
            for key, value in sorted(_tags.public(info.tags).items())
        )
        result.add_row(
            _screen.cell(info.id, "bold"),
            _screen.cell(info.provider),
            _screen.cell(info.state, styles[info.state]),
            _screen.cell(info.image or "-"),
            _screen.cell(age),
            _screen.cell(left),
            _screen.cell(tags or "-"),
        )
    return result
