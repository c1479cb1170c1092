"""`sandboxkit inspect`: show all information about one sandbox."""

import argparse
import dataclasses
import json

from sandboxkit import SandboxState, _tags
from sandboxkit.cli import _find, _options, ls


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "inspect",
        help="show all information about a sandbox, as JSON",
        description="Print a JSON object: the fields of 'ls --json', whether the sandbox is "
        "detached, the session that made it, and the resources that it has used.",
    )
    _options.provider(parser, _options.FOUND)
    parser.add_argument("id", metavar="ID")
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    with _find.reached(args, args.id) as sandbox:
        info = sandbox.status().result()
        usage = sandbox.usage().result() if info.state is SandboxState.RUNNING else None
    described = {
        **ls.as_json(info),
        "detached": _tags.DETACH in info.tags,
        "session": info.tags.get(_tags.SESSION),
        "usage": usage and dataclasses.asdict(usage),
    }
    print(json.dumps(described, indent=2))
    return 0
