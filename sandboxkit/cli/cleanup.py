"""`sandboxkit cleanup`: remove the selected sandboxes or snapshots, and datasets that nothing uses."""

import argparse

from sandboxkit import Operation, SandboxInfo, _tags
from sandboxkit._life import _cleanup
from sandboxkit.cli import _options, _providers, ls
from sandboxkit.cli._text import complain, count
from sandboxkit.errors import ConfigurationError, SandboxError
from sandboxkit.images import _lock

_EPILOG = """\
Removes the sandboxes that carry every --tag, are older than --older-than, and,
with --expired or --orphans, are one of these. Without any of these options no
sandbox is removed. --datasets then removes the provider's copies of datasets
that no sandbox mounts and no process uses. --snapshots removes snapshots
instead of sandboxes: those that have expired, or all with every --tag and older
than --older-than. Snapshots that a sandbox uses are kept.

exit codes:
  0    done, even if there was nothing to remove
  1    some could not be removed; the others were
  2    nothing selected, or wrong usage
  125  a backend failed before anything was removed

examples:
  sandboxkit cleanup --expired --orphans --all-providers
  sandboxkit cleanup --tag run:42 --older-than 1h --dry-run
"""


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "cleanup",
        help="remove sandboxes by tag or age, or expired and ownerless ones",
        description="Remove sandboxes, whichever process made them, and print which.",
        epilog=_EPILOG,
    )
    _options.provider(parser)
    _options.tags(parser)
    parser.add_argument(
        "--all-providers",
        dest="every",
        action="store_true",
        help="every provider that is configured and works here",
    )
    parser.add_argument("--expired", action="store_true", help="past the end of their lifetime")
    parser.add_argument(
        "--orphans",
        action="store_true",
        help="whose owner, a process here, is gone; not detached ones",
    )
    parser.add_argument(
        "--older-than", type=_options.seconds, metavar="TIME", help="such as 90s, 15m, 1h or 2d"
    )
    parser.add_argument("--snapshots", action="store_true", help="snapshots instead of sandboxes")
    parser.add_argument("--datasets", action="store_true", help="stored datasets that nothing uses")
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="only print what would be removed"
    )
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    sandboxes = bool(args.tag or args.expired or args.orphans or args.older_than)
    if not (sandboxes or args.datasets or args.snapshots):
        raise ConfigurationError(
            "nothing selected; give --tag, --expired, --orphans, --older-than, --snapshots or --datasets "
            "(see --help)"
        )
    if args.snapshots and args.orphans:
        raise ConfigurationError("--snapshots does not go with --orphans: snapshots have no owner")
    removed, others, failures = Operation(_sweep(args, sandboxes=sandboxes)).result()
    datasets, snapshots = others
    if removed:
        ls.show(removed)
    verb = "would remove" if args.dry_run else "removed"
    for name in (*snapshots, *datasets):
        print(name)
    what = [count(len(removed), "sandbox")] if removed else []
    what += [count(len(snapshots), "snapshot")] if snapshots else []
    what += [count(len(datasets), "dataset")] if datasets else []
    print(f"{verb} {' and '.join(what)}" if what else "nothing to remove")
    for failure in failures:
        complain(failure)
    return 1 if failures else 0


async def _sweep(
    args: argparse.Namespace, *, sandboxes: bool
) -> tuple[list[SandboxInfo], tuple[list[str], list[str]], list[Exception]]:
    tags = _tags.parse(args.tag)
    removed: list[SandboxInfo] = []
    datasets: list[str] = []
    snapshots: list[str] = []
    failures: list[Exception] = []
    for name in await _providers.chosen(args):
        try:
            async with _providers.loaded(name) as provider:
                if args.snapshots:
                    gone = await _cleanup.sweep_snapshots(
                        provider, tags=tags, older_than=args.older_than, dry_run=args.dry_run
                    )
                    snapshots += [info.id for info in gone]
                    if not args.dry_run:
                        _lock.remove_stale()
                elif sandboxes:
                    removed += await _cleanup.sweep(
                        provider,
                        tags=tags,
                        expired=args.expired,
                        orphans=args.orphans,
                        older_than=args.older_than,
                        dry_run=args.dry_run,
                    )
                if args.datasets:
                    datasets += await provider.remove_unused_datasets(dry_run=args.dry_run)
        except ExceptionGroup as errors:
            failures += errors.exceptions
        except SandboxError as error:
            if not args.every:
                raise
            failures.append(error)
    return removed, (datasets, snapshots), failures
