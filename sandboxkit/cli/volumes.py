"""`sandboxkit volumes`: list the volumes that sandboxes write to, and remove them by name."""

import argparse

from sandboxkit import Operation, Volume
from sandboxkit.cli import _options, _providers
from sandboxkit.cli._text import complain, safe_line
from sandboxkit.errors import VolumeError

_EPILOG = """\
The first sandbox that mounts a volume creates it. It exists until it is removed
with this command. A volume that a sandbox mounts is not removed.

exit codes:
  0    done
  1    rm: some could not be removed; the others were
  2    wrong usage

examples:
  sandboxkit run --mount /cache=volume:pip -- ls /cache
  sandboxkit volumes ls
  sandboxkit volumes rm pip
"""


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "volumes",
        help="list or remove the volumes that sandboxes write to",
        description="List the volumes of a provider, or remove some with all their content.",
        epilog=_EPILOG,
    )
    parts = parser.add_subparsers(metavar="PART", required=True)
    ls = parts.add_parser("ls", help="print the name of each volume")
    _options.provider(ls)
    ls.set_defaults(verb=_list)
    rm = parts.add_parser("rm", help="remove volumes; print the name of each")
    _options.provider(rm)
    rm.add_argument("names", metavar="NAME", nargs="+")
    rm.set_defaults(verb=_remove)


def _list(args: argparse.Namespace) -> int:
    async def names() -> list[str]:
        async with _providers.loaded(_options.provider_name(args)) as provider:
            return await provider.list_volumes()

    for name in Operation(names()).result():
        print(safe_line(name))
    return 0


def _remove(args: argparse.Namespace) -> int:
    names = [Volume(name).name for name in dict.fromkeys(args.names)]

    async def remove() -> list[VolumeError]:
        failures = []
        async with _providers.loaded(_options.provider_name(args)) as provider:
            for name in names:
                try:
                    await provider.remove_volume(name)
                    print(name)
                except VolumeError as error:
                    failures.append(error)
        return failures

    failures = Operation(remove()).result()
    for failure in failures:
        complain(failure)
    return 1 if failures else 0
