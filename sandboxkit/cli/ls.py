"""`sandboxkit ls`: list sandboxes."""

import argparse
import datetime
import json
import re
import sys
from collections.abc import Mapping, Sequence

from sandboxkit import Operation, SandboxInfo, SandboxState, _tags
from sandboxkit.cli import _options, _providers
from sandboxkit.cli._text import safe_line, tag_line
from sandboxkit.errors import SandboxError
from sandboxkit.provider import Provider

_FIELDS = ("id", "provider", "state", "image", "created_at", "expires_at", "tags")
_SHOWN = "{" + "}, {".join(_FIELDS) + "}"
_FIELD = re.compile(r"\{([^{}]*)\}")
_EPILOG = f"""\
A TEMPLATE is printed for each sandbox, with these fields filled in:
{_SHOWN},
and {{tags.KEY}} for one tag; \\t and \\n stand for a tab and a line end.

Exits with 1 if a provider that is configured here could not be queried; the
sandboxes of the others are listed.

examples:
  sandboxkit ls --tag run:42 --state running
  sandboxkit ls --format '{{id}}\\t{{expires_at}}\\t{{tags.run}}'
  sandboxkit stop $(sandboxkit ls -q --tag run:42)
"""


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "ls",
        help="list sandboxes",
        description="List the sandboxes of every provider that is configured here, whichever "
        "process made them.",
        epilog=_EPILOG,
    )
    selection(parser)
    parser.add_argument(
        "--state",
        type=SandboxState,
        choices=list(SandboxState),
        metavar="STATE",
        help="starting, running, paused or stopped",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format",
        type=_form,
        default="table",
        metavar="FORM",
        help="table (the default), json or a TEMPLATE",
    )
    form.add_argument(
        "--json", action="store_const", const="json", dest="format", help="--format json"
    )
    form.add_argument(
        "-q", "--quiet", action="store_const", const="{id}", dest="format", help="ids only"
    )
    parser.set_defaults(verb=main)


def selection(parser: argparse.ArgumentParser) -> None:
    """Add --tag and --provider; without --provider, all configured providers are selected."""
    _options.provider(parser, "only of this backend (default: every one that is configured)")
    _options.tags(parser)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    found, silent = Operation(listed(args)).result()
    if args.format == "json":
        print(json.dumps([as_json(info) for info in found], indent=2))
    elif args.format != "table":
        for info in found:
            print(_filled(args.format, info))
    elif found:
        show(found)
    elif not silent and sys.stderr.isatty():
        print(f"no sandboxes{' match' if args.tag or args.state else ''}", file=sys.stderr)
    return _providers.report(silent)


async def listed(
    args: argparse.Namespace,
) -> tuple[list[SandboxInfo], Mapping[str, SandboxError]]:
    """Return the selected sandboxes, newest last, and the errors of providers that could not be queried.

    Raises the error of a provider that the command line names.
    """
    tags = _tags.parse(args.tag)

    async def matching(provider: Provider) -> list[SandboxInfo]:
        return [info async for info in provider.list(tags) if args.state in (None, info.state)]

    found, silent = await _providers.listed(args, matching)
    oldest = datetime.datetime.min.replace(tzinfo=datetime.UTC)
    return sorted(found, key=lambda info: (info.created_at or oldest, info.id)), silent


def as_json(info: SandboxInfo) -> dict[str, object]:
    """Return one sandbox as JSON data; times are ISO 8601."""
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
    """Print the sandboxes in human-readable form."""
    from sandboxkit.cli import _listing, _screen  # only tables need rich, which is an extra

    console = _screen.console()
    console.print(_listing.listing(found, console))


def _form(text: str) -> str:
    if text in ("table", "json"):
        return text
    names = _FIELD.findall(text)
    for name in names:
        if name not in _FIELDS and not name.startswith("tags."):
            raise argparse.ArgumentTypeError(
                f"{{{name}}} is not a field; the fields are {_SHOWN} and {{tags.KEY}}"
            )
    if not names:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither table, json nor a template such as '{{id}} {{state}}'"
        )
    return text.replace("\\t", "\t").replace("\\n", "\n")


def _filled(template: str, info: SandboxInfo) -> str:
    values: dict[str, object] = {**as_json(info), "tags": tag_line(info.tags)}
    values |= {f"tags.{key}": value for key, value in _tags.public(info.tags).items()}

    def fill(field: re.Match[str]) -> str:
        return safe_line(str(values.get(field[1]) or ""))

    return _FIELD.sub(fill, template)
