"""`sandboxkit snapshots`: take snapshots of sandboxes, list them and remove them."""

import argparse
import datetime
import json
import shutil
import sys

from sandboxkit import Operation, Snapshot, _tags
from sandboxkit._snapshot import TTL, listed
from sandboxkit.cli import _find, _options, _providers
from sandboxkit.cli._text import aligned, complain, duration, safe_line, tag_line
from sandboxkit.errors import ConfigurationError, SandboxError
from sandboxkit.types import SnapshotInfo

_EPILOG = """\
Start from a snapshot with sandboxkit run --snapshot ID. Remove expired ones
with sandboxkit cleanup --snapshots, and those of a run with --tag as well.

examples:
  sandboxkit snapshots create local-0123456789abcdef --ttl 2h --tag run:42
  sandboxkit snapshots ls --tag run:42
"""

_HEADS = ("ID", "PROVIDER", "SIZE", "LEFT", "USED", "NAME", "TAGS")
_IMAGE_HEADS = ("ID", "PROVIDER", "SIZE", "AGE", "LEFT", "STEPS")


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "snapshots",
        help="take, list and remove snapshots of sandboxes",
        description="Take, list and remove snapshots of sandboxes.",
        epilog=_EPILOG,
    )
    parts = parser.add_subparsers(metavar="PART", required=True)
    create = parts.add_parser(
        "create",
        help="take a snapshot of a running sandbox",
        description="Take a snapshot of a running sandbox and print its id. The sandbox's programs are "
        "paused meanwhile. The snapshot has the sandbox's tags and those of --tag.",
    )
    _options.provider(create, _options.FOUND)
    create.add_argument("id", metavar="ID", help="the sandbox")
    create.add_argument("--name", help="a name to recognise it by")
    create.add_argument(
        "--ttl",
        type=_options.seconds,
        default=TTL,
        metavar="TIME",
        help="how long it is kept, such as 2h (default: 24h)",
    )
    create.add_argument(
        "--tag", metavar="TAG", action="append", default=[], help="a tag to find it by; repeatable"
    )
    create.set_defaults(verb=_create)
    ls = parts.add_parser(
        "ls",
        help="list snapshots",
        description="List the snapshots of every provider that is configured here, oldest first.",
    )
    _options.provider(ls)
    _options.tags(ls)
    ls.add_argument("--json", action="store_true", help="as JSON, for programs")
    ls.set_defaults(verb=show)
    rm = parts.add_parser(
        "rm",
        help="remove snapshots by id",
        description="Remove snapshots that no sandbox uses. Prints each id that was removed.",
    )
    _options.provider(rm)
    rm.add_argument("ids", metavar="ID", nargs="+")
    rm.set_defaults(verb=remove)


def _create(args: argparse.Namespace) -> int:
    info = Operation(_find.located(args.provider, args.id)).result()
    tags = {**_tags.public(info.tags), **_tags.parse(args.tag)}
    with _find.reached(args, info.id) as sandbox:
        print(sandbox.snapshot(args.name, ttl=args.ttl, tags=tags).result().id)
    return 0


def show(args: argparse.Namespace, tagged: str | None = None) -> int:
    """Print the snapshots, or those that have the tag `tagged`, with any value."""
    found, silent = _stored(args)
    found = [info for info in found if tagged is None or tagged in info.tags]
    if args.json:
        print(json.dumps([_as_json(info) for info in found], indent=2))
    elif found:
        rows: list[tuple[str, ...]] = [_IMAGE_HEADS if tagged else _HEADS]
        rows += [_image(info) if tagged else _row(info) for info in found]
        lines = aligned(rows, len(rows[0]), gap="   ").split("\n")
        if (
            tagged
            and sys.stdout.isatty()
            and max(map(len, lines)) > shutil.get_terminal_size().columns
        ):
            lines = aligned([row[:-1] for row in rows], len(rows[0]), gap="   ").split("\n")
            lines = [f"{line}\n  {row[-1]}" for line, row in zip(lines, rows, strict=True)]
        print("\n".join(lines))
    return _providers.report(silent)


def _stored(args: argparse.Namespace) -> tuple[list[SnapshotInfo], dict[str, SandboxError]]:
    tags = _tags.parse(args.tag)
    listing = _providers.listed(args, lambda provider: listed(provider, tags))
    found, silent = Operation(listing).result()
    return sorted(found, key=lambda info: (info.created_at, info.id)), silent


def remove(args: argparse.Namespace, tagged: str | None = None) -> int:
    """Delete the snapshots with the given ids; `tagged`: only those that have this tag."""
    args.tag, failed, kind = [], False, "image" if tagged else "snapshot"
    known, _ = _stored(args)
    for given in dict.fromkeys(args.ids):
        try:
            places = [i for i in known if i.id == given and (tagged is None or tagged in i.tags)]
            if not places:
                raise ConfigurationError(
                    f"no {kind} {given!r}; sandboxkit {kind}s ls shows the existing ones"
                )
            Snapshot.from_id(given, provider=places[0].provider).result().delete().result()
            print(safe_line(given))
        except SandboxError as error:
            failed = True
            complain(error)
    return 1 if failed else 0


def _row(info: SnapshotInfo) -> tuple[str, ...]:
    used = "-" if info.used_at is None else f"{_since(info.used_at)} ago"
    texts = (info.id, info.provider, _size(info), _left(info), used, info.name, tag_line(info.tags))
    return tuple(safe_line(text or "-") for text in texts)


def _image(info: SnapshotInfo) -> tuple[str, ...]:
    age = _since(info.created_at)
    texts = (info.id, info.provider, _size(info), age, _left(info), info.name)
    return tuple(safe_line(text or "-") for text in texts)


def _since(then: datetime.datetime) -> str:
    return duration((datetime.datetime.now(datetime.UTC) - then).total_seconds())


def _left(info: SnapshotInfo) -> str:
    if info.expires_at is None:
        return "-"
    seconds = (info.expires_at - datetime.datetime.now(datetime.UTC)).total_seconds()
    return duration(seconds) if seconds > 0 else "expired"


def _size(info: SnapshotInfo) -> str:
    return "-" if info.bytes is None else f"{info.bytes / 1e6:.1f} MB"


def _as_json(info: SnapshotInfo) -> dict[str, object]:
    return {
        "id": info.id,
        "provider": info.provider,
        "kind": info.kind,
        "name": info.name,
        "bytes": info.bytes,
        "parent": info.parent,
        "created_at": info.created_at.isoformat(),
        "expires_at": info.expires_at and info.expires_at.isoformat(),
        "used_at": info.used_at and info.used_at.isoformat(),
        "tags": _tags.public(info.tags),
    }
