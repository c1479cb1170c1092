"""`sandboxkit images`: build images from Dockerfiles on any provider with snapshots; list and remove them."""

import argparse
import functools
import sys

from sandboxkit import Image
from sandboxkit.cli import _options, snapshots
from sandboxkit.cli._text import safe_line
from sandboxkit.images._build import TAG
from sandboxkit.images._image import TTL

_EPILOG = """\
Docker's own builder or buildah builds it; buildah needs no daemon. The context
is the Dockerfile's folder. `sandboxkit doctor` shows which builders are here.
Build the same again, and the id is printed at once.

examples:
  sandboxkit images build --provider docker Dockerfile
  sandboxkit run --provider docker --snapshot ID -- pytest
  sandboxkit images ls
"""


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "images",
        help="build images of sandboxes, list and remove them",
        description="Build images from Dockerfiles, list them and remove them.",
        epilog=_EPILOG,
    )
    parts = parser.add_subparsers(metavar="PART", required=True)
    build = parts.add_parser(
        "build",
        help="build an image and print its id",
        description="Build a Dockerfile, unless that was done before, and print the id of the snapshot of "
        "the result. The builder's output goes to the standard error.",
    )
    _options.provider(build)
    build.add_argument("dockerfile", metavar="DOCKERFILE")
    build.add_argument(
        "--ttl",
        type=_options.seconds,
        default=TTL,
        metavar="TIME",
        help="how long it is kept, such as 2d (default: 7d)",
    )
    build.add_argument("--target", metavar="STAGE", help="the stage to build, instead of the last")
    build.add_argument(
        "--build-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the value of an ARG; may be repeated",
    )
    build.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="id=ID,src=FILE",
        help="a secret for RUN --mount=type=secret; may be repeated",
    )
    build.set_defaults(verb=_build)
    ls = parts.add_parser(
        "ls",
        help="list images",
        description="List images and their steps, oldest first.",
    )
    _options.provider(ls)
    _options.tags(ls)
    ls.add_argument("--json", action="store_true", help="as JSON, for programs")
    ls.set_defaults(verb=functools.partial(snapshots.show, tagged=TAG))
    rm = parts.add_parser("rm", help="remove images by id; print each that was removed")
    _options.provider(rm)
    rm.add_argument("ids", metavar="ID", nargs="+")
    rm.set_defaults(verb=functools.partial(snapshots.remove, tagged=TAG))


def _build(args: argparse.Namespace) -> int:
    given = dict(each.partition("=")[::2] for each in args.build_arg)
    path, secrets = args.dockerfile, tuple(args.secret)
    image = Image.from_dockerfile(path, target=args.target, args=given, secrets=secrets)
    snapshot = image.build(
        _options.provider_name(args),
        ttl=args.ttl,
        progress=lambda line: print(safe_line(line), file=sys.stderr),
    )
    print(snapshot.result().id)
    return 0
